# Runs every libFuzzer target for some seconds from its corpus tests/fuzz/<name>/ and counts executions.
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def fuzz(binary, seconds):
    """Gives (name, executions, failed, tail of the output). New inputs stay in build/fuzz/corpus."""
    name = binary.name.removeprefix("fuzz_")
    grown = ROOT / "build/fuzz/corpus" / name
    crashes = ROOT / "build/fuzz/crashes" / name
    for directory in (grown, crashes):
        directory.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests/fuzz" / name
    command = [binary, f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=2048",
               f"-artifact_prefix={crashes}/", grown] + ([seeds] if seeds.is_dir() else [])
    if os.environ.get("CI") == "true":
        # The same mutations in every run: a red run is the change's doing. `./dev test --fuzz 600` looks for new ones.
        command[1:1] = ["-seed=1", "-runs=5000"]
    dictionary = ROOT / "tests/fuzz" / f"{name}.dict"
    if dictionary.exists():
        command.insert(1, f"-dict={dictionary}")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", cwd=ROOT)
    count = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stdout)
    return name, int(count[1]) if count else 0, done.returncode != 0, done.stdout[-4000:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    targets = [path for path in sorted((ROOT / "build/fuzz").glob("fuzz_*"))
               if os.access(path, os.X_OK) and path.is_file() and args.only in path.name]
    failed = 0
    total = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, count, bad, tail in pool.map(lambda path: fuzz(path, args.seconds), targets):
            print(f"{name:24} {count:12,} executions in {args.seconds} s{'  FAILED' if bad else ''}", flush=True)
            total += count
            if bad:
                failed += 1
                print(tail, flush=True)
    print(f"{total:,} executions of {len(targets)} targets")
    print(f"{len(targets) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
