# The parts of a check on a GPU, one after the other within one budget of time; every part writes JSON lines.
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

from gpu import pack, parts, table


class Check:
    """What the parts share: where programs are, how much time is left, where results go."""

    def __init__(self, root, options, scratch):
        self.root, self.options, self.scratch = root, options, scratch
        self.device, self.quick = options.device, options.quick
        self.end = time.monotonic() + options.budget
        self.lines, self.counts = [], {"passed": 0, "failed": 0, "skipped": 0}
        self.bin, self.env = scratch / "bin", dict(os.environ)
        self.commit = "unknown"

    def left(self):
        return self.end - time.monotonic()

    def program(self, name):
        return self.bin / name

    def add(self, part, **fields):
        line = {"part": part, **fields}
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def verdict(self, part, outcome, **fields):
        """outcome: passed, failed or skipped."""
        self.counts[outcome] += 1
        self.add(part, outcome=outcome, **fields)

    def run(self, command, limit_s, **how):
        """A finished process. Throws subprocess.TimeoutExpired past the limit, which the budget may shorten."""
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=self.env,
                              timeout=max(1.0, min(limit_s, self.left())), stdin=subprocess.DEVNULL, **how)


def find_programs(check):
    """Programs from the bundle, from a build directory that was named, or built here."""
    options = check.options
    if options.build is None and (options.bundle / "programs.tar.xz").exists():
        check.commit = pack.unpack(options.bundle, check.scratch)
        paths = [check.scratch / "lib"] + parts.toolkit_folders()
        check.env["LD_LIBRARY_PATH"] = ":".join(map(str, paths + [check.env.get("LD_LIBRARY_PATH", "")]))
        return
    if options.build is None:
        options.build = check.root / "build/cuda"
        subprocess.run([check.root / "dev", "build", "cuda", *pack.PROGRAMS], check=True)
    check.bin = options.build.resolve()
    check.commit = pack.commit(check.root)


def machine(check):
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        gpu = "none"
    seen = check.run([check.program("trireme"), "devices"], 60)
    check.add("machine", gpu=gpu, devices=seen.stdout.splitlines(), cpu=platform.processor() or platform.machine(),
              commit=check.commit, when=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              device=check.device, quick=check.quick)


def write(check):
    out = check.options.out
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "check.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in check.lines)
    (out / "check.md").write_text(table.markdown(check.lines))
    print(f"{out / 'check.md'}")


def run(root, options):
    with tempfile.TemporaryDirectory() as scratch:
        check = Check(root, options, pathlib.Path(scratch))
        find_programs(check)
        machine(check)
        for name, part in parts.PARTS:
            if not any(word in name for word in options.only.split(",")):
                continue
            start = time.monotonic()
            if check.left() < 5:
                check.verdict(name, "skipped", why="the budget is spent")
                continue
            try:
                part(check)
            except Exception as error:  # one part must not cost the others their time on the machine
                check.verdict(name, "failed", why=f"{type(error).__name__}: {error}"[:2000])
            check.add("time", of=name, seconds=round(time.monotonic() - start, 1))
            write(check)
        write(check)
        counts = check.counts
        print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit("run tools/gpu_check")
