"""Contenders of a benchmark: long-lived processes that run a model for as many milliseconds as they are told."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


class Contender:
    """A process that prints a JSON line when it is ready and one for each line "milliseconds" it is sent."""

    def __init__(self, name, command, cpus, environment=None):
        start = time.perf_counter()
        environment = dict(environment or os.environ, OMP_NUM_THREADS=str(len(cpus)))
        self.name = name
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        self.ready = self.read() if name != "limits" else {}
        self.ready_ms = (time.perf_counter() - start) * 1e3

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self.process.wait()}")
        return json.loads(line)

    def run(self, milliseconds):
        self.process.stdin.write(f"{milliseconds}\n")
        self.process.stdin.flush()
        return self.read()

    def peak_bytes(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", text).group(1)) * 1024

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def ours(trireme, model, feeds, outputs, cpus):
    """`trireme run --loop` on FEEDS/<input>.npy; writes OUTPUTS/<output>.npy before it is ready."""
    command = [trireme, "run", model, "--threads", len(cpus), "--cpus", ",".join(map(str, cpus)), "--output", outputs,
               "--loop"]
    for path in sorted(pathlib.Path(feeds).glob("*.npy")):
        command += ["--input", f"{path.stem}={path}"]
    return Contender("trireme", command, cpus)


def peer(name, mode, model, feeds, outputs, cpus):
    """A peer in one of its modes; it goes by "name:mode"."""
    command = [sys.executable, HERE / "peer_worker.py", name, mode, model, len(cpus), feeds, outputs]
    command.append(",".join(map(str, cpus)))
    environment = dict(os.environ, OMP_PROC_BIND="true") if mode == "pinned" else None
    return Contender(f"{name}:{mode}", command, cpus, environment)


def limits(program, cpus):
    return Contender("limits", [program, len(cpus)], cpus)
