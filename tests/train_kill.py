# Training killed with SIGKILL at 50 random moments and resumed, each time on other ranks, ends with the bits of the run
# that nobody disturbed.
# timeout: 280
import hashlib
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from _training import INTERRUPTED, finish, make_patterns, read_log, start, tensors

KILLS = 50
STEPS = 1200

CONFIG = """
run: {{name: kill, directory: {directory}, steps: {steps}, seed: 11}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [48, 32], classes: 4, dropout: 0.1}}}}
data: {{path: {data}, hold_out: 0.1}}
batch: {{global: 32, micro: 8}}
loader: {{workers: 2, prefetch: 3}}
optimizer: {{kind: adamw, ema_keep: 0.99}}
schedule: {{lr: 0.003, warmup: 320}}
eval: {{every: 150}}
checkpoint: {{every: 40, keep: 2}}
log: {{progress: 0s}}
"""


def result(directory):
    """What must be equal: every state, the served model, the loss of every step, every evaluation."""
    digest = {name: hashlib.sha256(bits.tobytes()).hexdigest() for name, bits in tensors(directory, STEPS).items()}
    digest["model"] = hashlib.sha256((directory / "model/kill/1/model.onnx").read_bytes()).hexdigest()
    events = read_log(directory)
    steps = [(line["step"], line["loss"], line["lr"], line["grad_norm"]) for line in events["step"]]
    evals = [(line["step"], line["loss"], line["accuracy"]) for line in events["eval"]]
    return digest, steps, evals


def first_difference(a, b):
    for name, x, y in zip(("files", "steps", "evaluations"), a, b):
        if x != y:
            differ = [(p, q) for p, q in zip(x, y) if p != q] if isinstance(x, list) else (x, y)
            return f"{name} differ: {len(x)} against {len(y)}; {differ[:1]}"
    return ""


def survive(config, directory, rng, kills):
    """Starts and kills until the run ends or `kills` is used up; gives the kills made and what went wrong."""
    made, starts = 0, 0
    while True:
        starts += 1
        process = start(config, "--resume", "auto", "--run.threads", rng.choice([1, 2, 4]), "--dp",
                        rng.choice([1, 1, 2, 4]), "--zero", rng.choice([0, 1, 2, 3]))
        if made < kills:
            time.sleep(rng.uniform(0.02, 0.35))
            if process.poll() is None:
                how = signal.SIGTERM if starts % 10 == 0 else signal.SIGKILL
                process.send_signal(how)
                made += how == signal.SIGKILL
        code, stderr = finish(process)
        if code == 0:
            return made, ""
        if code not in (-signal.SIGKILL, -signal.SIGTERM, INTERRUPTED):
            return made, f"exit {code}: {stderr[-500:]}"


def main():
    rng = random.Random(7)
    failures, passed, made, runs = [], 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="train_kill") as scratch:
        scratch = Path(scratch)
        make_patterns(scratch / "data")

        def configure(name):
            path = scratch / f"{name}.yaml"
            path.write_text(CONFIG.format(directory=scratch / name, data=scratch / "data", steps=STEPS))
            return path

        code, stderr = finish(start(configure("whole"), "--run.threads", 1))
        if code != 0:
            sys.exit(f"the undisturbed run ends with {code}: {stderr[-800:]}")
        whole = result(scratch / "whole")
        accuracy = whole[2][-1][2]
        print(f"undisturbed: {len(whole[1])} steps, validation accuracy {accuracy:.3f}")
        if accuracy < 0.9:
            failures.append(f"learned only {accuracy}")
        while made < KILLS and not failures:
            runs += 1
            name = f"killed{runs}"
            kills, wrong = survive(configure(name), scratch / name, rng, KILLS - made)
            made += kills
            wrong = wrong or first_difference(whole, result(scratch / name))
            if wrong:
                failures.append(f"{name} after {kills} kills: {wrong}")
            else:
                passed += 1
    print(f"{made} kills over {runs} runs, each resumed on 1, 2 or 4 ranks with 1, 2 or 4 threads")
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{passed} passed, {len(failures)} failed, 0 skipped")
    sys.exit(1 if failures else 0)


main()
