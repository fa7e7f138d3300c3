# What tools/gpu_check makes of figures: impossible ones fail, two checks are compared, kernels are added up by step.
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from gpu import by_kernel, ceilings, compare, parts, run, traced  # noqa: E402

passed = 0
failed = 0

CEILINGS = {"part": "ceilings", "copy_gbytes_s": 3000.0, "product_bf16_tflop_s": 700.0, "product_f32_tflop_s": 50.0}


def expect(what, got, wanted=True):
    global passed, failed
    if got == wanted:
        passed += 1
    else:
        failed += 1
        print(f"{what}: got {got!r}, wanted {wanted!r}")


def impossible(part, **fields):
    return len(ceilings.impossible({"part": part, **fields}, CEILINGS))


def rates():
    expect("a prompt that the cache answered", impossible("llama", precision="bf16", prefill_tflop_s=824.9), 1)
    expect("a possible prompt", impossible("llama", precision="bf16", prefill_tflop_s=480.0, decode_gbytes_s=2600), 0)
    expect("within the noise", impossible("llama", precision="bf16", decode_gbytes_s=3400.0), 0)
    expect("more bytes than a copy moves", impossible("llama", precision="bf16", decode_gbytes_s=3500.0), 1)
    expect("what the program refused itself",
           impossible("llama", precision="bf16", prefill_tflop_s=None, prefill_tflop_s_refused="285 %"), 1)
    expect("f32 has its own ceiling", impossible("training", precision="f32", tflop_s=60.0), 1)
    expect("8 bits have twice that of 16", impossible("float8", precision="fp8", prefill_tflop_s=1100.0), 0)
    expect("but no more", impossible("float8", precision="fp8", prefill_tflop_s=1700.0), 1)
    expect("GFLOP/s", impossible("inference", precision="bf16", gflop_per_s=900e3), 1)
    expect("an operator above its ceilings", impossible("speed", op="add", seconds=1e-5, percent=None), 1)
    expect("a refused operator", impossible("speed", op="add", seconds=0, percent=0.0, refused="no kernel"), 0)
    expect("8-bit products", impossible("speed", op="float8_product", seconds=1e-4, percent=None, tflop_s=1127), 0)
    expect("nothing measured, nothing refused",
           ceilings.impossible({"part": "llama", "decode_gbytes_s": 9e9}, {}), [])


def lines_of(folder, name, lines):
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def a_check(folder):
    """Lines go through the check itself: what passed with an impossible rate counts as failed."""
    options = SimpleNamespace(device="cuda:0", quick=False, budget=100, out=folder / "out")
    check = run.Check(ROOT, options, folder)
    check.add("ceilings", **{key: value for key, value in CEILINGS.items() if key != "part"})
    shape = {"precision": "bf16", "prompt": 512, "new": 64, "batch": 64, "decode_step_ms": 18.0}
    check.verdict("llama", "passed", **shape, decode_gbytes_s=2000.0, prefill_tflop_s=480.0)
    check.verdict("llama", "passed", **shape, decode_gbytes_s=2000.0, prefill_tflop_s=2040.0)
    expect("counts", check.counts, {"passed": 1, "failed": 1, "skipped": 0})
    expect("the line says why", "above" in check.lines[-1]["why"])
    run.run_part(check, "late", lambda check: check.verdict("late", "passed", left=check.left()), 7)
    expect("a part has its share", 5 < check.lines[-2]["left"] <= 7)
    check.begin = time.monotonic() - 50
    run.run_part(check, "over", lambda check: check.verdict("over", "passed"), 40)
    expect("a part whose time is over", check.lines[-1]["outcome"], "skipped")
    check.file.close()


def comparison(folder):
    old = [{"part": "training", "network": "gpt2", "outcome": "passed", "median_us": 62900.0, "min_us": 62500.0},
           {"part": "training", "network": "bert", "outcome": "passed", "median_us": 5000.0, "min_us": 4990.0},
           {"part": "training", "network": "noisy", "outcome": "passed", "median_us": 100.0, "min_us": 80.0},
           {"part": "tests", "test": "A.B", "outcome": "passed"}, {"part": "serve", "outcome": "failed"}]
    new = [{"part": "training", "network": "gpt2", "outcome": "passed", "median_us": 40000.0, "min_us": 39900.0},
           {"part": "training", "network": "bert", "outcome": "passed", "median_us": 5100.0, "min_us": 5090.0},
           {"part": "training", "network": "noisy", "outcome": "passed", "median_us": 120.0, "min_us": 100.0},
           {"part": "serve", "outcome": "passed"}]
    before = lines_of(folder, "old.jsonl", old)
    out = folder / "new"
    out.mkdir()
    lines_of(out, "check.jsonl", new)
    done = subprocess.run([sys.executable, ROOT / "tools/gpu_check", "compare", "--compare", before, "--out", out],
                          capture_output=True, text=True, check=False)
    expect("compare ends well", done.returncode, 0)
    expect("what moved", "1.57 x faster: training gpt2: median_us 6.29e+04 -> 4e+04" in done.stdout)
    expect("2 % is noise", "bert" in done.stdout, False)
    expect("a noisy row may move by its noise", "noisy" in done.stdout, False)
    expect("what passes now", "failed -> passed: serve" in done.stdout)
    expect("what is gone", "gone: tests A.B" in done.stdout)
    same = compare.text(compare.read(before), compare.read(before))
    expect("the same check", same, ["nothing moved by more than the noise"])
    slower = list(compare.moves({"requests_s": 100.0}, {"requests_s": 50.0}))
    expect("a rate that fell is slower", [move[0] for move in slower], [0.5])


def kernels():
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    norm = "void trireme::cuda::run_kernel<trireme::cuda::RowNorm<float, float> >(T1)"
    rows = []
    for number in range(6):
        name = norm if number % 2 else "gemm_kernel(Params)"
        for metric, value in (("gpu__time_duration.sum", "2,000"), ("dram__bytes_read.sum", "3000000"),
                              ("dram__bytes_write.sum", "1000000")):
            rows.append(f'"{number}","{name}","{metric}","ns","{value}"')
    found = list(by_kernel.rows(['{"gflop": 1}', "==PROF== Connected", head, *rows], 3))
    expect("names", sorted(row["name"] for row in found), ["RowNorm<float, float>", "gemm_kernel"])
    expect("launches, ms, megabytes of a step",
           [(row["launches"], row["ms"], row["mbytes"], row["gbytes_s"]) for row in found], [(1, 0.002, 4, 2000)] * 2)
    expect("nothing was profiled", list(by_kernel.rows(["==ERROR=="], 3)), [])


def launches():
    norm = "_ZN7trireme4cuda10run_kernelINS0_8HeldNormIfEEEEvT_"
    last = "_ZN7trireme4cuda10run_kernelINS0_10TakeTokensEEEvT_"
    lines, now = [], 0
    for long in (100, 900, 500, 300):  # the first step has a launch more, and one is not whole
        for name, takes in [("copy", 10)] * (long == 100) + [(norm, long), (norm, 50), (last, 20)]:
            lines.append(f"{now} {now + takes} 7 {name}\n")
            now += takes + 5
    step = traced.usual(traced.read([*reversed(lines), f"{now} {now + 1} 7 {norm}\n"]))
    expect("launches of the usual step", [end - begin for begin, end, _, _ in step], [500, 50, 20])
    *kernels, whole = traced.rows(step, by_kernel.short)
    expect("kernels of a step", [(row["name"], row["launches"], row["us_a_launch"]) for row in kernels],
           [("HeldNorm<float>", 2, 0.275), ("TakeTokens", 1, 0.02)])
    expect("a step from its first begin to its last end", (whole["launches"], whole["span_ms"]), (3, 580 / 1e6))
    expect("no step", traced.usual([]), None)


def main():
    rates()
    launches()
    with tempfile.TemporaryDirectory() as scratch:
        a_check(Path(scratch))
        comparison(Path(scratch))
    kernels()
    expect("all parts in nine minutes", sum(seconds for _, _, seconds in parts.PARTS) <= parts.MOST_SECONDS <= 540)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
