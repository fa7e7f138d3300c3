# What the journeys of many ranks share: how ranks are started as processes on this machine.
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
TEST_COMM = str(Path(TRIREME).parent / "test_comm")


def why_no_mpi():
    """Empty where MPI ranks can run, else the reason."""
    if not shutil.which("mpirun"):
        return "no mpirun here: ./dev setup installs Open MPI"
    help_text = subprocess.run([TRIREME, "comm", "bench", "--kind", "mpi"], stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    return "this program was built without MPI" if "built without MPI" in help_text else ""


def environment():
    """Lets Open MPI start as root (containers) and start more ranks than cores; nothing outside tests sets these."""
    return dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")


def start(ranks, command, under_mpi=True, **how):
    launcher = ["mpirun", "-n", str(ranks)] if under_mpi else []
    return subprocess.Popen([*launcher, *map(str, command)], env=environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            **how)


def run(ranks, command, limit_s=100, under_mpi=True):
    """Gives (exit code, output)."""
    process = start(ranks, command, under_mpi)
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return None, output + f"\nkilled after {limit_s} s\n"
    return process.returncode, output


def conformance(ranks, code, output):
    """Totals (passed, failed) of the suite as every rank counted it: a case passed if it did on all ranks."""
    passed = [int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", output)]
    failed = set(re.findall(r"\[  FAILED  \] (Mpi/\S+)", output))
    if code == 0 and len(passed) == ranks and len(set(passed)) == 1 and passed[0] > 0 and not failed:
        return passed[0], 0
    return min(passed, default=0), max(1, len(failed))
