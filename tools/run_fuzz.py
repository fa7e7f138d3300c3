# Runs every libFuzzer target for some seconds and counts executions. Each run has a seed of its own, which it prints
# (--seed repeats one), and starts from the committed corpus tests/fuzz/<target>/ and from what earlier runs found
# (build/fuzz/corpus/, or $TRIREME_FUZZ_CORPUS, which outlives the build). A crash is made small, kept in
# build/fuzz/crashes/, and printed with the command that repeats it.
import argparse
import base64
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/fuzz"
LIMITS = ["-timeout=25", "-rss_limit_mb=2048"]
MINIMIZE_SECONDS = 20
PRINTED_BYTES = 4096  # of a crash, as base64: a log may be all that is left of the machine


def run(command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", cwd=ROOT)


def corpus_of(name):
    """Directories of inputs: new ones are written to the first."""
    kept = Path(os.environ.get("TRIREME_FUZZ_CORPUS") or BUILD / "corpus") / name
    kept.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests/fuzz" / name
    return [kept] + ([seeds] if seeds.is_dir() else [])


def shown(path):
    path = Path(path)
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def crash_report(binary, crash):
    """Makes the input smaller as far as it goes in some seconds; gives lines for people."""
    small = crash.with_name(crash.name + ".min")
    if not crash.name.startswith(("oom-", "timeout-", "slow-")):  # those take too long to run again and again
        run([binary, "-minimize_crash=1", f"-max_total_time={MINIMIZE_SECONDS}", f"-exact_artifact_path={small}",
             *LIMITS, crash])
    found = small if small.exists() else crash
    content = found.read_bytes()
    name = binary.name.removeprefix("fuzz_")
    lines = [f"  crash of {len(content)} bytes: {shown(found)}",
             f"  repeat it: {shlex.quote(str(shown(binary)))} {shlex.quote(str(shown(found)))}",
             f"  once mended, keep it: cp {shlex.quote(str(shown(found)))} tests/fuzz/{name}/"]
    if len(content) <= PRINTED_BYTES:
        lines.append(f"  base64: {base64.b64encode(content).decode()}")
    return lines


def fuzz(binary, seconds, seed):
    """Gives (name, executions, failed, what to print of a failure)."""
    name = binary.name.removeprefix("fuzz_")
    crashes = BUILD / "crashes" / name
    crashes.mkdir(parents=True, exist_ok=True)
    before = set(crashes.iterdir())
    dictionary = ROOT / "tests/fuzz" / f"{name}.dict"
    done = run([binary, f"-seed={seed}", f"-max_total_time={seconds}", "-print_final_stats=1", *LIMITS,
                f"-artifact_prefix={crashes}/", *([f"-dict={dictionary}"] if dictionary.exists() else []),
                *corpus_of(name)])
    count = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stdout)
    lines = []
    if done.returncode != 0:
        lines = [done.stdout[-4000:], f"  seed {seed}: ./dev test --fuzz {seconds} --fuzz-seed {seed} {name}"]
        for crash in sorted(set(crashes.iterdir()) - before):
            lines += crash_report(binary, crash)
    return name, int(count[1]) if count else 0, done.returncode != 0, "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--seed", type=int, help="of the mutations; none: another one in every run")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(4), "little") or 1
    print(f"seed {seed}", flush=True)
    targets = [path for path in sorted(BUILD.glob("fuzz_*"))
               if os.access(path, os.X_OK) and path.is_file() and args.only in path.name]
    failed = 0
    total = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, count, bad, text in pool.map(lambda path: fuzz(path, args.seconds, seed), targets):
            print(f"{name:24} {count:12,} executions in {args.seconds} s{'  FAILED' if bad else ''}", flush=True)
            total += count
            if bad:
                failed += 1
                print(text, flush=True)
    print(f"{total:,} executions of {len(targets)} targets, seed {seed}")
    print(f"{len(targets) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
