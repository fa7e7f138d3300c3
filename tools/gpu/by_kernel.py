# One step of each network, kernel by kernel: times and bytes of memory as ncu counts them.
import csv
import json
import re
import shutil

METRICS = {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "bytes", "dram__bytes_write.sum": "bytes"}
FIRST_STEPS = 3  # that bench_train runs by itself: as many as are counted
LARGEST = 40     # kernels of a network that get a line


def tool():
    return shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")


def short(name):
    """Softmax<__half> of void trireme::cuda::run_kernel<trireme::cuda::Softmax<__half>>(...)."""
    inner = re.search(r"run_kernel<(.*)>\(", name)
    text = inner[1] if inner else name.split("(")[0]
    return re.sub(r"\(anonymous namespace\)::|trireme::cuda::|^void |\s+(?=>)", "", text).strip()[:110]


def number(text):
    return float(text.replace(",", "") or 0)


def sums(lines):
    """{kernel: {"launches", "ns", "bytes"}} of what `ncu --csv --print-units base` printed."""
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found = {}
    for row in csv.DictReader(lines[start:]):
        what = METRICS.get(row.get("Metric Name"))
        if what is None:
            continue
        kernel = found.setdefault(short(row["Kernel Name"]), {"launches": 0, "ns": 0.0, "bytes": 0.0})
        kernel[what] += number(row["Metric Value"])
        kernel["launches"] += what == "ns"
    return found


def rows(lines, steps):
    """A line for each kernel, the longest first: per step launches, milliseconds, megabytes, and GB/s."""
    found = sums(lines)
    total = sum(kernel["ns"] for kernel in found.values())
    for name, kernel in sorted(found.items(), key=lambda item: -item[1]["ns"]):
        yield {"name": name, "launches": kernel["launches"] / steps, "ms": kernel["ns"] / steps / 1e6,
               "mbytes": kernel["bytes"] / steps / 1e6,
               "gbytes_s": kernel["bytes"] / kernel["ns"] if kernel["ns"] else 0.0,
               "percent": 100 * kernel["ns"] / total if total else 0.0}


def profile(check, networks):
    """Steps of training under ncu. What its programs choose by measuring is in the cache from the part before."""
    ncu = tool()
    if ncu is None:
        return check.verdict("profile", "skipped", why="no ncu")
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "none",
               "--metrics", ",".join(METRICS)]
    for network, precision in networks:
        if check.left() < 15:
            return check.verdict("profile", "skipped", network=network, why="the budget is spent")
        done = check.run([*command, check.program("bench_train"), network, 0, check.device, precision], 60)
        found = list(rows(done.lines, FIRST_STEPS))
        for row in found[:LARGEST]:
            check.add("profile", network=network, precision=precision, **row)
        said = next((json.loads(line) for line in done.lines if line.startswith('{"gflop"')), {})
        check.verdict("profile", "passed" if found and done.ok() else "failed", network=network, precision=precision,
                      name="all kernels", launches=sum(row["launches"] for row in found),
                      ms=sum(row["ms"] for row in found), mbytes=sum(row["mbytes"] for row in found),
                      gflop=said.get("gflop"), why="" if found and done.ok() else done.why())
    return None
