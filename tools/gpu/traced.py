# One step of decoding kernel by kernel, from begin and end of every launch of a program (kernel_trace.c).
import collections
import pathlib
import subprocess

NAME = "libkernel_trace.so"
LAST = "TakeTokens"  # the kernel that ends a step
LARGEST = 16         # kernels of a step that get a line


def toolkit(what):
    """The first of some places of the CUDA toolkit that is there."""
    return next((path for path in map(pathlib.Path, what) if path.exists()), None)


def build(to):
    """Compiles the library and puts CUPTI beside it; False without a toolkit that has it."""
    headers = toolkit(["/usr/local/cuda/include/cupti.h", "/usr/local/cuda/extras/CUPTI/include/cupti.h"])
    cupti = toolkit(["/usr/local/cuda/lib64/libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"])
    if headers is None or cupti is None:
        return False
    source = pathlib.Path(__file__).parent / "kernel_trace.c"
    (to / cupti.name).write_bytes(cupti.read_bytes())
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f"-I{headers.parent}", source, "-o", to / NAME,
                    to / cupti.name, "-pthread", "-Wl,-rpath,$ORIGIN"], check=True)
    return True


def read(lines):
    """(begin, end, blocks, name) of each launch, in the order of their begin."""
    found = []
    for line in lines:
        begin, end, blocks, name = line.rstrip("\n").split(" ", 3)
        found.append((int(begin), int(end), int(blocks), name))
    return sorted(found)


def steps(launches):
    """Launches by step; what comes behind the last whole step is left out."""
    found, step = [], []
    for launch in launches:
        step.append(launch)
        if LAST in launch[3]:
            found.append(step)
            step = []
    return found


def span(step):
    return max(launch[1] for launch in step) - step[0][0]


def usual(launches):
    """Of the steps that have as many launches as most, the one whose time is in the middle; None if there is none."""
    found = steps(launches)
    if not found:
        return None
    count = collections.Counter(map(len, found)).most_common(1)[0][0]
    alike = sorted((step for step in found if len(step) == count), key=span)
    return alike[len(alike) // 2]


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=False)
    return dict(zip(names, done.stdout.splitlines() if done.returncode == 0 else names))


def rows(step, short):
    """A line for each kernel and size, the longest first, and one of all. Launches that overlap count twice."""
    kernels = {}
    names = demangled(sorted({launch[3] for launch in step}))
    for begin, end, blocks, name in step:
        kernel = kernels.setdefault((short(names[name]), blocks), {"launches": 0, "ns": 0})
        kernel["launches"] += 1
        kernel["ns"] += end - begin
    for (name, blocks), kernel in sorted(kernels.items(), key=lambda item: -item[1]["ns"])[:LARGEST]:
        yield {"name": name, "blocks": blocks, "launches": kernel["launches"], "ms": kernel["ns"] / 1e6,
               "us_a_launch": kernel["ns"] / kernel["launches"] / 1e3}
    yield {"name": "all kernels", "launches": len(step), "ms": sum(end - begin for begin, end, _, _ in step) / 1e6,
           "span_ms": span(step) / 1e6}


def trace(check, command, limit_s):
    """Launches of a program, or None where it or the tracer failed."""
    path = check.scratch / "kernels.trace"
    env = {**check.env, "KERNEL_TRACE": str(path), "CUDA_INJECTION64_PATH": str(check.bin.parent / "lib" / NAME)}
    done = check.run(command, limit_s, env=env)
    if not done.ok() or not path.exists():
        return None
    with open(path, encoding="utf-8") as file:
        return read(file)
