# The parts of a check on a GPU, one after the other within one budget of time. Every result is in the file before the
# next one is asked for: a part that crashes or hangs costs its own results only.
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpu import ceilings, compare, pack, parts, summary, table


class Done:
    """A process that ended, or was ended at its limit."""

    def __init__(self, code, lines, errors, timed_out):
        self.code, self.lines, self.errors, self.timed_out = code, lines, errors, timed_out

    def ok(self):
        return self.code == 0 and not self.timed_out

    def why(self, limit=1500):
        how = "past its time limit; " if self.timed_out else f"exit {self.code}; " if self.code else ""
        return (how + self.errors[-limit:]).strip()


class Check:
    """What the parts share: where programs are, how much time is left, where results go."""

    def __init__(self, root, options, scratch):
        self.root, self.options, self.scratch = root, options, scratch
        self.device, self.quick = options.device, options.quick
        self.begin = time.monotonic()
        self.end = self.part_end = self.begin + options.budget
        self.lines, self.counts = [], {"passed": 0, "failed": 0, "skipped": 0}
        # Others' programs are not to find the libraries that ours brought along.
        self.bin, self.plain_env, self.env = scratch / "bin", dict(os.environ), dict(os.environ)
        # Kernels and choices of algorithms are made once for all parts, and anew in each check.
        self.env["XDG_CACHE_HOME"] = str(scratch / "cache")
        self.env["TRIREME_RECORD"] = "must"  # a program that falls back to single launches fails
        self.commit, self.lock = "unknown", threading.Lock()
        options.out.mkdir(parents=True, exist_ok=True)
        self.file = open(options.out / "check.jsonl", "w", encoding="utf-8")

    def left(self):
        """Seconds of the part that runs, and of all."""
        return min(self.end, self.part_end) - time.monotonic()

    def program(self, name):
        return self.bin / name

    def ceilings(self):
        """What was measured here; nothing in a quick check, whose sizes are too small to tell."""
        found = [line for line in self.lines if line["part"] == "ceilings" and "copy_gbytes_s" in line]
        return found[-1] if found and not self.quick else {}

    def add(self, part, **fields):
        """Keeps a line. One with a figure that cannot be fails, whatever else it says."""
        line = {"part": part, **fields}
        why = [] if self.quick else ceilings.impossible(line, self.ceilings())
        if why:
            line |= {"outcome": "failed", "why": "; ".join([*why, *filter(None, [line.get("why")])])}
        if "outcome" in line:
            self.counts[line["outcome"]] += 1
        with self.lock:
            self.lines.append(line)
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
            print(f"{time.monotonic() - self.begin:5.0f}s {summary.brief(line)}", flush=True)

    def verdict(self, part, outcome, **fields):
        """outcome: passed, failed or skipped."""
        self.add(part, outcome=outcome, **fields)

    def run(self, command, limit_s, on_line=None, text="", env=None):
        """Runs a process to its end or its limit, which the budget may shorten. `on_line` gets lines as they come."""
        limit = max(1.0, min(limit_s, self.left()))
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=errors, text=True, errors="replace", env=env or self.env,
                                       start_new_session=True)
            lines = []

            def read():
                for line in process.stdout:
                    lines.append(line.rstrip("\n"))
                    if on_line is not None:
                        on_line(lines[-1])

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            timed_out = False
            try:
                if text:
                    process.stdin.write(text)
                process.stdin.close()
            except OSError:
                pass  # it ended before it read: its exit code tells
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                timed_out = True
            try:
                os.killpg(process.pid, signal.SIGKILL)  # and what it left behind
            except ProcessLookupError:
                pass
            process.wait()
            reader.join(5)
            errors.seek(0)
            return Done(process.returncode, lines, errors.read().decode(errors="replace"), timed_out)

    def run_recorded(self, part, command, limit_s, **how):
        """As run(); where launches cannot be recorded, that is a failure, and the process runs again without."""
        done = self.run(command, limit_s, **how)
        if done.ok() or "recording" not in done.errors:
            return done
        self.verdict(part, "failed", recording="refused", why=done.why())
        return self.run(command, limit_s, **how, env={**self.env, "TRIREME_RECORD": "may"})


def find_programs(check):
    """Programs from the bundle, from a build directory that was named, or built here."""
    options = check.options
    libraries = parts.toolkit_folders()
    if options.build is None and (options.bundle / "programs.tar.xz").exists():
        check.commit = pack.unpack(options.bundle, check.scratch)
        libraries.insert(0, check.scratch / "lib")
    else:
        if options.build is None:
            options.build = check.root / "build/cuda"
            subprocess.run([check.root / "dev", "build", "cuda", *pack.PROGRAMS], check=True)
        check.bin = options.build.resolve()
        check.commit = pack.commit(check.root)
    if check.device != "emulated":
        paths = [*map(str, libraries), check.env.get("LD_LIBRARY_PATH", "")]
        check.env["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)


def machine(check):
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
    gpu = "none"
    if shutil.which(query[0]):
        gpu = " ".join(check.run(query, 20, env=check.plain_env).lines) or "none"
    seen = check.run([check.program("trireme"), "devices"], 60)
    check.add("machine", gpu=gpu, devices=seen.lines or [seen.why()], cpu=platform.processor() or platform.machine(),
              commit=check.commit, when=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              device=check.device, quick=check.quick, cores=os.cpu_count(), python=platform.python_version())


def write_page(check):
    (check.options.out / "check.md").write_text(table.markdown(check.lines, summary.text(check.lines)))


def run_part(check, name, part, end):
    """One part, whose turn is over `end` seconds after the check began."""
    start = time.monotonic()
    check.part_end = check.begin + end
    if check.left() < min(5, end):
        return check.verdict(name, "skipped", why="the budget is spent")
    try:
        part(check)
    except Exception as error:  # one part must not cost the others their time on the machine
        check.verdict(name, "failed", why=f"{type(error).__name__}: {error}"[:2000])
    check.add("time", of=name, seconds=round(time.monotonic() - start, 1))
    write_page(check)


def compared(old, new):
    return "\n".join([f"== beside {old}", *compare.text(compare.read(old), compare.read(new))])


def run(root, options):
    with tempfile.TemporaryDirectory() as scratch:
        check = Check(root, options, Path(scratch))
        find_programs(check)
        machine(check)
        due = time.monotonic() - check.begin
        for name, part, seconds in parts.PARTS:
            if any(word in name for word in options.only.split(",")):
                due += seconds
                run_part(check, name, part, due)
        choices = Path(scratch) / "cache/trireme/gemm.jsonl"
        if choices.exists():
            shutil.copy(choices, options.out / "gemm.jsonl")
        write_page(check)
        print("\n".join(summary.text(check.lines)))
        if options.compare:
            print(compared(options.compare, options.out / "check.jsonl"))
        print(options.out / "check.md")
        counts = check.counts
        print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit("run tools/gpu_check")
