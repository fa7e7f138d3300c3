# trireme train as its users meet it: mistakes named, signals, resume, full disks, and the trained model served.
# timeout: 240
import json
import resource
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from _serving import Server, run_cases
from _training import INTERRUPTED, make_patterns, read_log, start, train, finish

CONFIG = """
run: {{name: patterns, directory: {directory}, steps: {steps}, seed: 5}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [32], classes: 4}}}}
data: {{path: {data}, hold_out: 0.2}}
batch: {{global: 32}}
optimizer: {{kind: sgd}}
schedule: {{lr: 0.05}}
checkpoint: {{every: 50}}
log: {{progress: 0s}}
"""

scratch = tempfile.TemporaryDirectory(prefix="train_journey")
ROOM = Path(scratch.name)
IMAGES, LABELS = make_patterns(ROOM / "data")


def configure(name, steps=200, text=CONFIG):
    """Gives the configuration's path and the run directory."""
    path = ROOM / f"{name}.yaml"
    path.write_text(text.format(directory=ROOM / name, data=ROOM / "data", steps=steps))
    return path, ROOM / name


def expect_refusal(config, words, code, *more):
    got, stderr = train(config, *more)
    assert got == code, f"exit {got}, not {code}: {stderr}"
    assert len(stderr.strip().splitlines()) == 1, stderr
    for word in words:
        assert word in stderr, f"no {word!r} in {stderr}"


def mistakes_are_named():
    path, _ = configure("mistakes")
    good = path.read_text()
    for old, new, words in [
            ("schedule:", "shedule:", ["mistakes.yaml:7", "'shedule'", "'schedule'"]),
            ("lr: 0.05", "rate: 0.05", ["mistakes.yaml:7", "unknown key 'rate'"]),
            ("global: 32", "global: many", ["mistakes.yaml:5", "expected an integer"]),
            ("kind: sgd", "kind: sdg", ["mistakes.yaml:6", "one of"]),
            ("lr: 0.05", "lr: [", ["mistakes.yaml"]),
            ("classes: 4", "clases: 4", ["classes"])]:
        path.write_text(good.replace(old, new))
        expect_refusal(path, words, 2)
    path.write_text(good)
    expect_refusal(path, ["micro 5"], 2, "--batch.micro", "5")
    expect_refusal(path, ["nowhere"], 2, "--data.path", ROOM / "nowhere")
    expect_refusal(path, ["no checkpoint"], 3, "--resume", ROOM / "nowhere")
    assert train(path, "--check")[0] == 0
    expect_refusal(path, ["bytes", "there are 1024"], 5, "--check", "--run.memory", "1KiB")


def a_signal_saves_and_resume_goes_on():
    path, directory = configure("whole")
    assert train(path)[0] == 0
    path, broken = configure("broken")
    process = start(path, "--run.steps", 100000, "--schedule.total", 6400)
    while not (broken / "log.jsonl").exists() or len((broken / "log.jsonl").read_text()) < 3000:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    code, stderr = finish(process)
    assert code == INTERRUPTED, f"exit {code}: {stderr}"
    at = read_log(broken)["end"][0]["step"]
    assert (broken / f"checkpoints/step-{at:08d}/index.json").exists()
    # A directory that holds a run is not overwritten by accident.
    expect_refusal(path, ["holds a run already"], 2)
    code, stderr = train(path, "--resume", "auto", "--run.steps", max(at + 10, 200))
    assert code == 0, stderr
    steps = [line["step"] for line in read_log(broken)["step"]]
    assert steps == list(range(1, max(at + 10, 200) + 1))


def a_full_disk_is_reported():
    """A limit on file sizes makes writes fail in the middle, for root too."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))

    path, directory = configure("full", 60)
    words = [path, "--log.tensorboard", "false", "--log.report", "false", "--save.format", "none"]
    code, stderr = finish(start(*words, preexec_fn=limit))
    assert code == 5 and "checkpoint of step 50" in stderr and "File too large" in stderr, (code, stderr)
    assert not list(directory.glob("checkpoints/step-*")), "a partial checkpoint is there"
    code, stderr = finish(start(*words, "--checkpoint.on_error", "go_on", preexec_fn=limit))
    assert code == 0 and stderr.count("checkpoint_failed") == 2, (code, stderr)
    code, stderr = train(*words)  # with room again
    assert code == 0 and (directory / "checkpoints/step-00000060/index.json").exists(), (code, stderr)


def what_was_trained_is_served():
    path, directory = configure("served", 400)
    code, stderr = train(path)
    assert code == 0, stderr
    with Server(directory / "model") as server:
        images = (IMAGES[:32].reshape(32, 1, 12, 12) / np.float32(255)).astype(np.float32)
        body = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "shape": list(images.shape),
                                       "data": images.ravel().tolist()}]}).encode()
        answer = json.load(urllib.request.urlopen(server.url + "/v2/models/patterns/infer", data=body, timeout=30))
    logits = np.array(answer["outputs"][0]["data"]).reshape(32, 4)
    right = (logits.argmax(1) == LABELS[:32]).mean()
    assert right > 0.95, f"{right:.3f} of the served answers are right"
    report = (directory / "report.md").read_text()
    assert "best validation accuracy" in report and (directory / "plots/loss.svg").exists()


run_cases([(case.__name__, case) for case in (
    mistakes_are_named, a_signal_saves_and_resume_goes_on, a_full_disk_is_reported, what_was_trained_is_served)])
