# Rates that the program prints: of all the work and of no more, and never above what it measures as the most.
import json
import os
import re
import subprocess
import sys

TRIREME = os.environ["TRIREME"]
LLAMA = "zoo:llama:width=64,layers=2,heads=4,kv_heads=2,inner=128,vocabulary=200,positions=256"
NOISE = 1.15  # base::kCeilingNoise
passed = failed = 0


def check(what, good, *seen):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print(what, *seen)


def trireme(*words):
    done = subprocess.run([TRIREME, *map(str, words)], capture_output=True, text=True, timeout=110)
    check(f"{words[0]} ends well", done.returncode == 0, done.stderr[-500:])
    return done.stdout


def check_rate(what, report, key):
    """Either a rate with a share that is possible, or none with the reason."""
    if report[key] is None:
        check(what + " refused", "of" in report[key + "_refused"], report)
    else:
        check(what + " share", 0 < report.get(key + "_share", 1) <= NOISE, report)


def run_json(*words):
    return json.loads(trireme("run", *words, "--repeat", 3, "--json"))


def ranks():
    """A model's FLOPs do not depend on who computes them."""
    model = ("zoo:resnet18:size=64", "--batch", 4, "--threads", 2)
    one = run_json(*model)
    check_rate("one rank", one, "gflop_per_s")
    for spread in (("--pp", 2), ("--tp", 2)):
        several = run_json(*model, *spread)
        check(f"FLOPs {spread}", abs(several["gflop"] / one["gflop"] - 1) < 0.02, several["gflop"], one["gflop"])
        check_rate(f"rate {spread}", several, "gflop_per_s")


def profile():
    """No step is said to do more than the machine can: the words of the run's own ceiling hold for each."""
    told = trireme("run", "zoo:resnet18:size=64", "--batch", 2, "--threads", 1, "--repeat", 3, "--profile")
    summary = re.search(r"([\d.]+) GFLOP/s \((\d+) % of products", told)
    steps = [float(rate) for rate in re.findall(r"%\s+([\d.]+) GFLOP/s", told)]
    check("steps are listed", told.count("GFLOP/s") > 10, told[:2000])
    if summary and int(summary[2]) > 0 and steps:
        ceiling = float(summary[1]) / int(summary[2]) * 100
        check("steps below the ceiling", max(steps) <= ceiling * NOISE * 1.05, max(steps), ceiling)
    else:
        check("or no rate, and why", "no rate in GFLOP/s" in told, told[-500:])


def prompts():
    """The prefix cache knows no prompt of a benchmark: neither of its warm-up nor of another shape."""
    one, other = ("--bench", "prompt=64,new=4,batch=3"), ("--bench", "prompt=128,new=4,batch=2")
    told = trireme("generate", LLAMA, *one, *other, "--threads", 2, "--json")
    first, second = map(json.loads, told.splitlines())
    for shape, report in ((3 * 64, first), (2 * 128, second)):
        check("all prompt tokens are computed", report["prefill_tokens"] >= shape, report)
        check_rate("prefill", report, "prefill_tflop_s")
        check_rate("decode", report, "decode_gbytes_s")
    split = json.loads(trireme("generate", LLAMA, *one, "--threads", 2, "--tp", 2, "--json"))
    check("bytes of all ranks", split["decode_step_bytes"] >= first["decode_step_bytes"], split, first)
    check("text", "computed in" in trireme("generate", LLAMA, "--bench", "prompt=16,new=2,batch=1", "--threads", 1))


ranks()
profile()
prompts()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
