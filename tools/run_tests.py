# Runs the GoogleTest binaries of a build and the Python journeys of tests/, and totals them in its last line.
#
# A journey is tests/<name>.py: exit code 0, and a last line `N passed, N failed, N skipped`. A comment `# tier: all`,
# `# tier: onnx`, `# tier: oracles` or `# tier: slurm` among its first five lines keeps it for ./dev test --all, --onnx,
# `# timeout: SECONDS` there lifts its time limit. Files that start with an underscore are modules, not journeys.
#
# With --second-runs N, at most N tests that failed are run once more, alone. One that passes then is called UNSTEADY
# above the totals and does not fail the call. A crash, a hang, and a test that fails again do.
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY_LIMIT_S = 900  # limits end what hangs; how long a test takes is nothing that it is judged by
JOURNEY_LIMIT_S = 300
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped")


@dataclass
class Result:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: list = field(default_factory=list)  # why tests were skipped
    output: str = ""  # printed when something failed
    cases: list = field(default_factory=list)  # of a GoogleTest binary: the names of those that failed
    again: object = None  # runs what failed once more; None where it ended in a way that no second run excuses


def run(command, limit_s, env):
    """Runs a command, killing it and its children at the limit. Gives exit code (None: killed), output, seconds."""
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        output += f"\nkilled after {limit_s} s\n"
        code = None
    return code, output, time.monotonic() - start


def gtest_cases(report):
    for suite in json.loads(report.read_text()).get("testsuites", []):
        yield from suite.get("testsuite", [])


def run_binary(binary, limit_s, cases=()):
    """One GoogleTest binary, or those cases of it, in its own temporary directory. A crash counts as one failure and
    names the test."""
    result = Result(binary.name)
    with tempfile.TemporaryDirectory(prefix=binary.name) as scratch:
        report = Path(scratch) / "report.json"
        env = dict(os.environ, TMPDIR=scratch, TEST_TMPDIR=scratch, GTEST_COLOR="no")
        chosen = [f"--gtest_filter={':'.join(cases)}"] if cases else []
        code, output, result.seconds = run([binary, f"--gtest_output=json:{report}", *chosen], limit_s, env)
        if report.exists():
            for case in gtest_cases(report):
                if case.get("failures"):
                    result.failed += 1
                    result.cases.append(f"{case['classname']}.{case['name']}")
                elif case.get("result") == "SKIPPED":
                    result.skipped += 1
                elif case.get("status") == "RUN":
                    result.passed += 1
            result.reasons = skip_reasons(output)
        elif code == 0:
            result.output = "no report written"
    if code != 0 and not result.failed:
        last = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
        result.passed = len(re.findall(r"^\[       OK \]", output, re.M))
        result.failed = 1
        output += f"\n{binary.name} ended with {code} in {last[-1] if last else 'no test'}\n"
    if result.failed:
        result.output = output
    if result.cases and code == 1:
        result.again = lambda: run_binary(binary, limit_s, result.cases)
    return result


def skip_reasons(output):
    """GoogleTest prints `file:line: Skipped`, the reason, then the test's name."""
    return [reason.strip() for reason in re.findall(r": Skipped\n(.*)\n", output)]


def header(script):
    lines = script.read_text(errors="replace").splitlines()[:5]
    pairs = (re.match(r"#\s*(tier|timeout):\s*(\w+)", line) for line in lines)
    return {match[1]: match[2] for match in pairs if match}


def run_journey(script):
    result = Result(f"tests/{script.name}")
    limit_s = int(header(script).get("timeout", JOURNEY_LIMIT_S))
    env = dict(os.environ, PYTHONPATH=str(ROOT / "tests"), PYTHONDONTWRITEBYTECODE="1")
    code, output, result.seconds = run([sys.executable, script], limit_s, env)
    lines = output.strip().splitlines()
    totals = TOTALS.match(lines[-1]) if lines else None
    if totals:
        result.passed, result.failed, result.skipped = map(int, totals.groups())
    if code != 0 or not totals:
        result.failed = max(result.failed, 1)
        output += f"\n{result.name} ended with {code}\n"
    result.reasons = re.findall(r"^skip(?:ped)?:? (.*)$", output, re.M | re.I) if result.skipped else []
    if result.failed:
        result.output = output
    if result.failed and code == 1:
        result.again = lambda: run_journey(script)
    return result


def tests_of(result):
    """How many tests a second run takes up: cases of a binary, else what the journey counted as failed."""
    return len(result.cases) or result.failed


def run_again(results, most):
    """Runs what failed once more, if that is at most so many tests. Returns the names of those that passed then."""
    failed = [result for result in results if result.failed]
    if sum(map(tests_of, failed)) > most:
        return []
    unsteady = []
    for result in failed:
        second = result.again() if result.again else None
        if second and not second.failed:
            unsteady.append(" ".join([result.name, *result.cases]))
            result.passed, result.failed = result.passed + len(result.cases) if result.cases else second.passed, 0
    return unsteady


def show(result):
    print(f"{result.name:32} {result.passed:5} passed, {result.failed} failed, {result.skipped} skipped"
          f" {result.seconds:7.1f} s", flush=True)
    if result.failed:
        print(result.output[-20000:], flush=True)
    for reason in sorted(set(result.reasons)):
        print(f"{'':34}skipped {result.reasons.count(reason)}: {reason}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--tiers", default="quick")
    parser.add_argument("--only", default="")
    parser.add_argument("--second-runs", type=int, default=0, metavar="N")
    args = parser.parse_args()
    tiers = args.tiers.split(",")
    if "all" in tiers:
        os.environ["TRIREME_TEST_ALL"] = "1"  # GoogleTests of minutes skip themselves without it

    binaries, journeys = [], []
    if "quick" in tiers:
        binaries = sorted(path for path in (ROOT / args.build).glob("test_*") if os.access(path, os.X_OK))
    for script in sorted((ROOT / "tests").glob("*.py")):
        if not script.name.startswith("_") and header(script).get("tier", "quick") in tiers:
            journeys.append(script)
    binaries = [path for path in binaries if args.only in path.name]
    journeys = [path for path in journeys if args.only in path.name]
    if re.search(r"asan|tsan|fuzz", args.build.name) and journeys:
        # They meet goals for time and memory, which the sanitizers change by factors.
        print("sanitizers: the journeys of tests/*.py run in the other builds only")
        journeys = []

    # Tests start threads of their own and some watch a clock, so binaries take half the cores and journeys go alone.
    start = time.monotonic()
    slower = 4 if re.search(r"asan|tsan|debug|fuzz", args.build.name) else 1
    results = []
    with concurrent.futures.ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        for done in concurrent.futures.as_completed(
                [pool.submit(run_binary, binary, BINARY_LIMIT_S * slower) for binary in binaries]):
            results.append(done.result())
            show(results[-1])
    for script in journeys:
        results.append(run_journey(script))
        show(results[-1])

    unsteady = run_again(results, args.second_runs)
    passed, failed, skipped = (sum(getattr(r, key) for r in results) for key in ("passed", "failed", "skipped"))
    names = [r.name for r in results if r.failed]
    if names:
        print(f"failed: {' '.join(names)}")
    for name in unsteady:
        print(f"UNSTEADY {name}: failed, and passed when it ran alone")
    print(f"tests took {time.monotonic() - start:.1f} s")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not results else 0)


main()
