# The event files of a run, resumed once, as TensorBoard's own reader sees them, against log.jsonl.
# tier: oracles
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from _training import make_patterns, read_log, train

CONFIG = """
run: {{name: events, directory: {room}/run, seed: 5}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [32], classes: 4}}}}
data: {{path: {room}/data, hold_out: 0.2}}
batch: {{global: 32}}
schedule: {{kind: constant, lr: 0.01}}
eval: {{every: 20}}
log: {{progress: 0s}}
"""
TAGS = {"train/loss": "loss", "train/lr": "lr", "train/grad_norm": "grad_norm", "train/accuracy": "accuracy"}

with tempfile.TemporaryDirectory(prefix="tensorboard_reader") as room:
    room = Path(room)
    make_patterns(room / "data")
    (room / "run.yaml").write_text(CONFIG.format(room=room))
    for steps in (40, 60):
        code, stderr = train(room / "run.yaml", "--resume", "auto", "--run.steps", steps)
        assert code == 0, stderr
    log = read_log(room / "run")
    events = EventAccumulator(str(room / "run/tensorboard"))
    events.Reload()
    failures = []
    for tag, key in TAGS.items():
        seen = [(event.step, event.value) for event in events.Scalars(tag)]
        want = [(line["step"], line[key]) for line in log["step"]]
        close = len(seen) == len(want) and all(
            a[0] == b[0] and abs(a[1] - b[1]) <= 1e-6 * max(1, abs(b[1])) for a, b in zip(seen, want))
        if not close:
            failures.append(f"{tag}: {len(seen)} points against {len(want)} lines")
    evals = [event.step for event in events.Scalars("eval/loss")]
    if evals != [line["step"] for line in log["eval"]]:
        failures.append(f"eval/loss at {evals}")
for failure in failures:
    print(f"FAILED {failure}")
print(f"{len(TAGS) + 1 - len(failures)} passed, {len(failures)} failed, 0 skipped")
sys.exit(1 if failures else 0)
