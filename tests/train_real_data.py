# Training on real data: pictures, characters and sentence pairs, each to what its example promises.
# tier: all
# timeout: 1500
import os
import tempfile
from pathlib import Path

from _serving import Skip, encoder_dir, run_cases
from _training import ROOT, finish, read_log, start

EXAMPLES = ROOT / "examples/train"
DATA = os.environ.get("TRIREME_SHARED_DATA")


def run(name, *settings):
    """Trains an example with changes; gives the log's events."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = (f"run.directory={scratch}/run", "log.progress=0s", *settings)
        changes = [word for setting in settings for word in ("--set", setting)]
        code, errors = finish(start(EXAMPLES / name, *changes), 900)
        assert code == 0, errors
        return read_log(f"{scratch}/run")


def fashion_mnist():
    """One epoch of the ten that reach 93 %: 88 %."""
    events = run("fashion_mnist.yaml", "run.epochs=1", "eval.every=0")
    accuracy = events["eval"][-1]["accuracy"]
    assert accuracy >= 0.86, accuracy


def mnist():
    if not DATA:
        raise Skip("no TRIREME_SHARED_DATA: MNIST is there")
    events = run("fashion_mnist.yaml", f"data.path={DATA}/mnist", "run.epochs=1", "eval.every=0",
                 "model.source=zoo:cnn", "model.config=dropout=0.25", "augment.crop=0", "augment.padding=0", "augment.random_crop=false",
                 "augment.flip=false", "augment.normalize=mnist", "schedule.lr=0.05")
    accuracy = events["eval"][-1]["accuracy"]
    assert accuracy >= 0.985, accuracy


def cifar10():
    """A tenth of the data for four epochs: far from what the network can do, far from guessing."""
    if not DATA:
        raise Skip("no TRIREME_SHARED_DATA: CIFAR-10 is there")
    events = run("fashion_mnist.yaml", f"data.path={DATA}/cifar10/data_batch_1.bin.gz", "data.format=cifar10",
                 f"validation.path={DATA}/cifar10/test_batch_first1000.bin.gz", "validation.split=train",
                 "model.source=zoo:resnet8", "model.config=[channels=3, size=32]", "augment.crop=32", "augment.padding=4",
                 "augment.normalize=cifar10", "run.epochs=4", "eval.every=0")
    accuracy = events["eval"][-1]["accuracy"]
    assert accuracy >= 0.45, accuracy


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
    with tempfile.TemporaryDirectory() as scratch:
        some = Path(scratch) / "some.csv"
        some.write_text("".join((pairs / "stsb-en-test.csv").read_text().splitlines(keepends=True)[::3]))
        events = run("sentence_pairs.yaml", f"model.source={encoder_dir()}", f"data.path={pairs}/stsb-en-dev.csv",
                     f"validation.path={some}", "run.epochs=0", "run.steps=30", "eval.every=0")
    first, last = (e["rank_correlation"] for e in (events["eval"][0], events["eval"][-1]))
    print(f"rank correlation {first:.4f} -> {last:.4f}")
    assert last > first + 0.002, (first, last)


CASES = [fashion_mnist, mnist, cifar10, shakespeare, sentence_pairs]
run_cases([(case.__name__, case) for case in CASES])
