# Training on real data: pictures, characters and sentence pairs, each to what its example promises.
# tier: all
# timeout: 1500
import os
import tempfile
from pathlib import Path

from _serving import Skip, encoder_dir, run_cases
from _training import ROOT, read_log, train

EXAMPLES = ROOT / "examples/train"
DATA = os.environ.get("TRIREME_SHARED_DATA")


def run(name, *settings):
    """Trains an example with changes; gives the log's events."""
    with tempfile.TemporaryDirectory() as scratch:
        changes = [word for s in (f"run.directory={scratch}/run", "log.progress=0s", *settings) for word in ("--set", s)]
        code, errors = train(EXAMPLES / name, *changes)
        assert code == 0, errors
        return read_log(f"{scratch}/run")


def fashion_mnist():
    """Two epochs of the ten that reach 93 %."""
    events = run("fashion_mnist.yaml", "run.epochs=2", "eval.every=0")
    accuracy = events["eval"][-1]["accuracy"]
    assert accuracy >= 0.88, accuracy


def shakespeare():
    if not DATA:
        raise Skip("no TRIREME_SHARED_DATA: tiny Shakespeare is there")
    events = run("shakespeare.yaml", f"data.path={DATA}/text/tinyshakespeare.txt")
    loss = events["eval"][-1]["loss"]
    assert loss <= 1.90, loss


def sentence_pairs():
    if not DATA:
        raise Skip("no TRIREME_SHARED_DATA: the pairs are there")
    pairs = Path(DATA) / "text/glue_like"
    events = run("sentence_pairs.yaml", f"model.source={encoder_dir()}", f"data.path={pairs}/stsb-en-dev.csv",
                 f"validation.path={pairs}/stsb-en-test.csv", "run.epochs=0", "run.steps=40", "eval.every=0")
    first, last = (e["rank_correlation"] for e in (events["eval"][0], events["eval"][-1]))
    print(f"rank correlation {first:.4f} -> {last:.4f}")
    assert last > first + 0.003, (first, last)


run_cases([("fashion_mnist", fashion_mnist), ("shakespeare", shakespeare), ("sentence_pairs", sentence_pairs)])
