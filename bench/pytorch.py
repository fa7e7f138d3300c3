"""PyTorch as a peer at its best: MKL's AVX-512 path also on AMD, and what it says that it runs."""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ASK = """import torch
a = torch.ones(64, 64)
with torch.no_grad():
    torch.nn.functional.conv2d(torch.ones(4, 64, 28, 28), torch.ones(64, 64, 3, 3))
a @ a"""


def has_avx512():
    return " avx512f " in pathlib.Path("/proc/cpuinfo").read_text()


def environment(base=None):
    """The environment of a process that runs PyTorch: mkl_avx512.c is loaded first where there is AVX-512."""
    result = dict(base or os.environ, OMP_PROC_BIND="true")
    if has_avx512():
        library = HERE.parent / "out/bench/mkl_avx512.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "mkl_avx512.c"], check=True)
        result["LD_PRELOAD"] = str(library)
    return result


def restart_with_paths():
    """For programs that import PyTorch themselves: begins them again in environment(), unless that was done."""
    if has_avx512() and "mkl_avx512" not in os.environ.get("LD_PRELOAD", ""):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment())


def paths():
    """{"MKL": ..., "oneDNN": ...}: the instruction sets they say they run on here. Throws where the processor has
    AVX-512 and one of them does not use it: the peer would not be at its best."""
    verbose = environment() | {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    told = subprocess.run([sys.executable, "-c", ASK], env=verbose, capture_output=True, text=True, check=True).stdout
    found = {"MKL": parse_mkl(told), "oneDNN": parse_onednn(told)}
    wrong = [name for name, isa in found.items() if has_avx512() and "AVX-512" not in isa]
    if wrong:
        raise RuntimeError(f"{', '.join(wrong)} of PyTorch does not use AVX-512 here: {found}")
    return found


def parse_mkl(told):
    ends = r"(?: with support.*| enabled processors.*|, Lnx.*)$"
    line = re.search(r"^MKL_VERBOSE .*?architecture (.*?)" + ends, told, re.M)
    return line[1] if line else "not told"


def parse_onednn(told):
    line = re.search(r"^onednn_verbose.*info,cpu,isa:(.*?)(?: with .*)?$", told, re.M)
    return line[1] if line else "not told"
