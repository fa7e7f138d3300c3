# What the journeys of batch jobs share: models and input made on the spot, jobs as processes, outputs as digests.
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from _serving import TRIREME, save, value

START_AGAIN = 75  # exit code: stopped, and what was done is kept
WIDTH, SLOW_WIDTH = 64, 1024


def make_model(path, factor=0.5, slow=0):
    """y [batch, WIDTH] = x times a matrix that mixes its columns; `slow`: times so many large ones between, each of
    2 million operations a row."""
    weight = np.eye(WIDTH, dtype=np.float32) * factor + np.eye(WIDTH, k=1, dtype=np.float32) * 0.25
    wide = np.eye(WIDTH, SLOW_WIDTH, dtype=np.float32)
    turn = np.roll(np.eye(SLOW_WIDTH, dtype=np.float32), 1, 1)
    weights = {"w": weight, "widen": wide, "turn": turn, "narrow": np.ascontiguousarray(wide.T)}
    steps = ["w"] + (["widen"] + ["turn"] * slow + ["narrow"] if slow else [])
    names = ["x"] + [f"h{i}" for i in range(1, len(steps))] + ["y"]
    nodes = [helper.make_node("MatMul", [names[i], step], [names[i + 1]]) for i, step in enumerate(steps)]
    stored = [onnx.numpy_helper.from_array(weights[name], name) for name in sorted(set(steps))]
    save(nodes, [value("x", TensorProto.FLOAT, ["batch", WIDTH])], [value("y", TensorProto.FLOAT, ["batch", WIDTH])],
         Path(path), stored)


def expected(xs, factor=0.5):
    return np.asarray(xs) @ (np.eye(WIDTH) * factor + np.eye(WIDTH, k=1) * 0.25)


def row(number):
    return [((number * 7 + i * 3) % 11 - 5) / 8 for i in range(WIDTH)]


def write_rows(path, first, count):
    """Lines {"id": "row-3", "x": [...]}."""
    with open(path, "w", encoding="utf-8") as file:
        for number in range(first, first + count):
            file.write(json.dumps({"id": f"row-{number}", "x": row(number)}) + "\n")


class Job:
    """A job of its own in a directory: files of input, a model, a job file."""

    def __init__(self, directory, rows=(300, 200), slow=0, chunk_rows=50, output_format="jsonl", **options):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.output = self.directory / "out"
        self.file = self.directory / "job.yaml"
        self.model = self.directory / "m.onnx"
        self.rows = sum(rows)
        make_model(self.model, slow=slow)
        first = 0
        for i, count in enumerate(rows):
            write_rows(self.directory / f"in{i}.jsonl", first, count)
            first += count
        keys = {"model": str(self.model), "chunk_rows": chunk_rows, "threads": 1, **options}
        keys["input"] = {"files": [str(self.directory / "in*.jsonl")], "keep": ["id"]}
        keys["output"] = {"directory": str(self.output), "format": output_format}
        self.file.write_text(json.dumps(keys))  # JSON is YAML

    def start(self, *flags, **how):
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
        return subprocess.Popen([TRIREME, "batch", str(self.file), *map(str, flags)], stdin=subprocess.DEVNULL, **how)

    def run(self, *flags, code=0, **how):
        """Runs to the end and looks at the exit code; gives (stdout, stderr)."""
        process = self.start(*flags, **how)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, f"exit {process.returncode}, not {code}: {err[-1500:]}"
        return out, err

    def look(self, verb, *flags, code=0):
        done = subprocess.run([TRIREME, "batch", verb, str(self.output), *flags], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == code, f"{verb}: exit {done.returncode}: {done.stdout} {done.stderr}"
        return done.stdout

    def status(self):
        return json.loads(self.look("status", "--json"))

    def parts(self):
        """The bytes of all outputs by name, without the job's own state."""
        return {str(path.relative_to(self.output)): path.read_bytes() for path in sorted(self.output.rglob("*"))
                if path.is_file() and not str(path.relative_to(self.output)).startswith("_job")}

    def lines(self):
        return [json.loads(line) for name, data in self.parts().items() if name.startswith("part-")
                for line in data.decode().splitlines()]

    def wait_for(self, condition, process, limit_s=60):
        end = time.monotonic() + limit_s
        while not condition():
            assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()[1][-1500:]}"
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.01)

    def some_are_done(self, count=1):
        return len(list(self.output.glob("part-*"))) >= count


def peak_mib(process, pause_s=0.01):
    """Waits for a process; the largest resident set that it had. What wait4() says is of no use here: it counts what
    the process was before exec, this interpreter with all that it has loaded."""
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))])
        time.sleep(pause_s)
    process.wait()
    return peak / 1024


def survive_kills(scratch, kills, workers=(1, 1, 2)):
    """Jobs whose workers are killed at random moments and started again, until so many were; every output has the
    bytes of the undisturbed run. Gives the number of jobs."""
    rng = random.Random(11)
    form = {"rows": (3000, 2000), "slow": 4, "chunk_rows": 100}
    whole = Job(scratch / "whole", **form)
    whole.run()
    expected_parts = whole.parts()
    made = jobs = 0
    while made < kills:
        jobs += 1
        job = Job(scratch / f"killed{jobs}", **form)
        done = False
        while not done:
            with open(job.directory / "log", "a", encoding="utf-8") as log:
                running = [job.start(stdout=subprocess.DEVNULL, stderr=log) for _ in range(rng.choice(workers))]
            if made < kills:
                time.sleep(rng.uniform(0.02, 0.5))
            for process in running:
                if made < kills and process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    made += 1
            codes = [process.wait(timeout=120) for process in running]
            assert all(code in (0, -signal.SIGKILL) for code in codes), \
                f"{codes}: {(job.directory / 'log').read_text()[-1500:]}"
            done = 0 in codes
        assert job.parts() == expected_parts, f"job {jobs} differs"
        job.look("verify")
    return jobs
