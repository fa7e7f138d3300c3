# What a process does before its first result, by counts: libraries that it loads, threads that it starts, pages that
# it touches.
import mmap
import os
import resource
import subprocess
import tempfile
from pathlib import Path

from _checks import check, finish, skip, trireme
from _serving import TRIREME

PAGE = 4096
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def libraries():
    """What the system loads before the program's first instruction."""
    listed = subprocess.run([TRIREME, "help"], capture_output=True, text=True, check=True,
                            env=dict(os.environ, LD_TRACE_LOADED_OBJECTS="1")).stdout
    check("Highway's library is not loaded", "libhwy" not in listed, listed)


def run_once(model):
    """Runs a model once, and while it waits for orders says how many threads it has."""
    with subprocess.Popen([TRIREME, "run", model, "--threads", "1", "--loop"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        ready = process.stdout.readline()
        check("a first result", "gflop" in ready, ready)
        names = [Path(task, "comm").read_text().strip() for task in Path(f"/proc/{process.pid}/task").iterdir()]
        process.stdin.close()
    return names


def alone(model):
    names = [name for name in run_once(model) if "jemalloc" not in name]  # Arrow's allocator has a thread of its own
    check("one thread computes, and no other was started", len(names) == 1, names)


def are_huge_pages_granted():
    """Whether the system has huge pages to give just now: memory may be in pieces."""
    if not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        return False
    size = 256 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, PAGE):
            memory[at] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 0.1 * size / PAGE


def faults(model, weights):
    """Page faults of one run: where huge pages are granted, weights that are folded and packed take one for 512."""
    if not are_huge_pages_granted():
        return skip("no huge pages on this system, or none just now")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    trireme("run", model, "--threads", "1")
    taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before
    # Folding copies the weights once: on small pages that alone is weights / PAGE.
    check("page faults", taken < 0.6 * weights / PAGE, f"{taken} for {weights} bytes of weights")
    return None


with tempfile.TemporaryDirectory() as folder:
    network = Path(folder) / "resnet18.onnx"
    trireme("export", "zoo:resnet18", network)
    libraries()
    alone(network)
    faults(network, network.stat().st_size)
finish()
