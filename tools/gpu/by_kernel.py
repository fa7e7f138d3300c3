# One step of each network, kernel by kernel: of decoding by begin and end of every launch where the bundle has what
# asks the driver for them (traced.py), else times and bytes of memory as ncu counts them.
import csv
import json
import re
import shutil

from gpu import traced

METRICS = {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "bytes", "dram__bytes_write.sum": "bytes"}
FIRST_STEPS = 3  # that bench_train runs by itself: as many as are counted
LARGEST = 40     # kernels of a network that get a line
MOST_SECONDS = 40  # of one network under ncu


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


def command_of(ncu):
    return [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "none",
            "--metrics", ",".join(METRICS)]


def add_rows(check, done, steps, network, precision, **more):
    """Lines of the largest kernels and one of all; False where ncu told nothing."""
    found = list(rows(done.lines, steps))
    for row in found[:LARGEST]:
        check.add("profile", network=network, precision=precision, **row)
    is_good = bool(found) and done.ok()
    check.verdict("profile", "passed" if is_good else "failed", network=network, precision=precision,
                  name="all kernels", launches=sum(row["launches"] for row in found),
                  ms=sum(row["ms"] for row in found), mbytes=sum(row["mbytes"] for row in found), **more,
                  why="" if is_good else done.why())
    return is_good


def traced_steps(check, decoding):
    """A step of each shape of decoding, by the driver's records."""
    for network, precision, words in decoding:
        launches = traced.trace(check, [check.program("trireme"), "generate", *words], MOST_SECONDS)
        step = traced.usual(launches or [])
        if step is None:
            return check.verdict("profile", "failed", network=network, why="no step was recorded")
        *kernels, whole = traced.rows(step, short)
        for row in kernels:
            check.add("profile", network=network, precision=precision, **row)
        check.verdict("profile", "passed", network=network, precision=precision, **whole)
    return None


def profile(check, networks, decoding):
    """Steps of decoding, and of training under ncu."""
    if check.device != "emulated" and (check.bin.parent / "lib" / traced.NAME).exists():
        traced_steps(check, decoding)
        decoding = []
    counted_steps(check, networks, decoding)


def counted_steps(check, networks, decoding):
    """Steps of decoding and of training under ncu. What their programs choose by measuring is in the cache already.
    `decoding`: (name, precision, words of `trireme generate`), run once without ncu for the same reason. After a
    network that ncu does not finish the others are left out: they would not finish either."""
    ncu = tool()
    if ncu is None:
        return check.verdict("profile", "skipped", why="no ncu")
    for network, precision, words in decoding:
        command = [check.program("trireme"), "generate", *words]
        check.run(command, MOST_SECONDS)
        env = {**check.env, "TRIREME_RECORD": "may"}  # ncu times launches, not recordings
        done = check.run([*command_of(ncu), *command], MOST_SECONDS, env=env)
        if not add_rows(check, done, 1, network, precision):
            return None
    for network, precision in networks:
        if check.left() < 15:
            return check.verdict("profile", "skipped", network=network, why="the budget is spent")
        done = check.run([*command_of(ncu), check.program("bench_train"), network, 0, check.device, precision],
                         MOST_SECONDS)
        said = next((json.loads(line) for line in done.lines if line.startswith('{"gflop"')), {})
        if not add_rows(check, done, FIRST_STEPS, network, precision, gflop=said.get("gflop")):
            return None
    return None
