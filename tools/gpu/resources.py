#!/usr/bin/env python3
"""Registers, shared memory and spills of every kernel in a cuda build, as ptxas assigned them.

    tools/gpu/resources.py [--build build/cuda] [--write docs/cuda-kernels.md]

Fails if a kernel keeps registers in local memory.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def tool():
    wheels = sorted((ROOT / ".venv/lib").glob("python3*/site-packages/nvidia/cu13/bin/cuobjdump"))
    found = shutil.which("cuobjdump") or (wheels[0] if wheels else None)
    if found is None:
        sys.exit("no cuobjdump: ./dev build cuda installs it")
    return found


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def short(name):
    """Softmax<__half> of void trireme::cuda::run_kernel<trireme::cuda::Softmax<__half> >(...)."""
    inner = re.search(r"run_kernel<(.*)>\(", name)
    text = inner[1] if inner else name
    return re.sub(r"\(anonymous namespace\)::|trireme::cuda::|\s+(?=>)", "", text).strip()


def read(cuobjdump, path):
    text = subprocess.run([cuobjdump, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    arch, rows = "", []
    lines = text.splitlines()
    for line, following in zip(lines, lines[1:] + [""]):
        if line.startswith("arch = "):
            arch = line.removeprefix("arch = ")
        if line.strip().startswith("Function "):
            fields = {key: int(value) for key, value in re.findall(r"([A-Z]+(?:\[\d\])?):(\d+)", following)}
            rows.append((line.strip().removeprefix("Function ").rstrip(":"), arch, fields))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--write", type=pathlib.Path)
    options = parser.parse_args()
    cuobjdump, kernels = tool(), {}
    for path in sorted(options.build.glob("CMakeFiles/trireme_core.dir/src/**/*.cu.o")):
        rows = read(cuobjdump, path)
        for (_, arch, fields), name in zip(rows, demangled([row[0] for row in rows])):
            kernels.setdefault((path.name.removesuffix(".o"), short(name)), {})[arch] = fields
    if not kernels:
        sys.exit(f"no kernels under {options.build}: ./dev build cuda")
    archs = sorted({arch for by_arch in kernels.values() for arch in by_arch})
    spilled = [f"{name} on {arch}: {fields['LOCAL']} bytes" for (_, name), by_arch in kernels.items()
               for arch, fields in by_arch.items() if fields.get("LOCAL", 0) > 0]
    lines = ["# CUDA kernels", "", "Written by `tools/gpu/resources.py`; do not edit. What ptxas gave each kernel: "
             "registers of a thread, bytes of stack and of static shared memory.", ""]
    lines += ["| file | kernel | " + " | ".join(f"{arch} registers, stack, shared" for arch in archs) + " |",
              "|---|---|" + "---|" * len(archs)]
    for (file, name), by_arch in sorted(kernels.items()):
        cells = [", ".join(str(by_arch.get(arch, {}).get(key, 0)) for key in ("REG", "STACK", "SHARED"))
                 for arch in archs]
        lines.append(f"| {file} | {name} | " + " | ".join(cells) + " |")
    if options.write:
        options.write.write_text("\n".join(lines) + "\n")
    most = max((fields.get("REG", 0) for by_arch in kernels.values() for fields in by_arch.values()), default=0)
    print(f"{len(kernels)} kernels for {', '.join(archs)}; at most {most} registers; {len(spilled)} spill")
    for line in spilled:
        print(f"FAILED {line}")
    return 1 if spilled else 0


sys.exit(main())
