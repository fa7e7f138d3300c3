"""Time to accuracy on Fashion-MNIST beside PyTorch: ./dev bench fashion_mnist [--threads N] [--peer-epochs N].

Both train the network of examples/train/fashion_mnist.yaml (three stages of two residual blocks, width 24) with one
recipe, batches and augmentation on the same cores, and are measured on the test images after every epoch. The peer runs
in each of its modes, half of its epochs before and half after ours; it may run fewer, since its time per epoch is what
differs. A row has seconds of training (evaluation left out) by epoch, and the first epoch at 93 %. What is written:
bench/call.py.
"""
import argparse
import gzip
import json
import math
import os
import pathlib
import subprocess
import statistics
import sys
import tempfile
import time

import contenders
import pytorch
from call import Call, arguments
from report import Fashion

GOAL = 0.93
BATCH, WIDTH, EPOCHS = 128, 24, 10  # epochs that the rates are planned for
ROOT = pathlib.Path(__file__).resolve().parent.parent
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


def ours(threads):
    """[(seconds of training, accuracy)] by epoch."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([os.environ["TRIREME"], "train", ROOT / "examples/train/fashion_mnist.yaml", "--quiet",
                        "--set", f"run.directory={scratch}", "--set", f"run.threads={threads}",
                        "--set", "eval.every=468", "--set", "log.progress=30s"], check=True)
        seconds, epochs = 0.0, []
        for line in (pathlib.Path(scratch) / "log.jsonl").read_text().splitlines():
            event = json.loads(line)
            seconds += event["step_ms"] / 1e3 if event["event"] == "step" else 0
            if event["event"] == "eval":
                epochs.append((seconds, event["accuracy"]))
        return epochs


def images(name, torch):
    with gzip.open(FASHION / f"{name}-images-idx3-ubyte.gz") as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 1, 28, 28).float()
    with gzip.open(FASHION / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    return (pixels / 255 - 0.2860) / 0.3530, labels


def build(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inside, outside, stride):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside),
                                      nn.ReLU(), nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
                                      nn.BatchNorm2d(outside))
            self.skip = nn.Identity() if inside == outside else nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x):
            return torch.relu(self.body(x) + self.skip(x))

    layers = [nn.Conv2d(1, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    inside = WIDTH
    for outside in (WIDTH, 2 * WIDTH, 4 * WIDTH):
        for i in range(2):
            layers.append(Block(inside, outside, 2 if i == 0 and outside != WIDTH else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def peer(mode, threads, epochs, planned):
    """[(seconds of training, accuracy)] by epoch."""
    import torch
    torch.manual_seed(1)
    if threads:
        torch.set_num_threads(threads)
    pixels, labels = images("train", torch)
    test_pixels, test_labels = images("t10k", torch)
    model = build(torch)
    if "channels_last" in mode:
        model = model.to(memory_format=torch.channels_last)

    def loss_of(x, y):
        return torch.nn.functional.cross_entropy(model(x), y)

    loss = torch.compile(loss_of) if "compiled" in mode else loss_of
    if "compiled" in mode:  # before the clock runs
        loss(pixels[:BATCH], labels[:BATCH]).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = len(labels) // BATCH
    total, warm = planned * steps, int(0.05 * planned * steps)
    seconds, result = 0.0, []
    black = (0 - 0.2860) / 0.3530
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(labels))
        begin = time.perf_counter()
        for i in range(steps):
            step = epoch * steps + i
            rate = (step + 1) / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
            optimizer.param_groups[0]["lr"] = 0.1 * rate
            chosen = order[BATCH * i:BATCH * (i + 1)]
            x = torch.nn.functional.pad(pixels[chosen], (2, 2, 2, 2), value=black)
            at = torch.randint(0, 5, (2, BATCH, 1))
            rows, columns = at[0] + torch.arange(28), at[1] + torch.arange(28)
            x = x[torch.arange(BATCH)[:, None, None], 0, rows[:, :, None], columns[:, None, :]][:, None]
            flip = torch.rand(BATCH) < 0.5
            x[flip] = x[flip].flip(3)
            optimizer.zero_grad(set_to_none=True)
            if "channels_last" in mode:
                x = x.contiguous(memory_format=torch.channels_last)
            loss(x, labels[chosen]).backward()
            optimizer.step()
        seconds += time.perf_counter() - begin
        model.eval()
        with torch.no_grad():
            guesses = torch.cat([model(test_pixels[i:i + 500]).argmax(1) for i in range(0, len(test_labels), 500)])
        result.append((seconds, (guesses == test_labels).float().mean().item()))
    return result


def row(name, epochs):
    """Seconds of each epoch from the running sums."""
    seconds = [b - a for a, b in zip([0.0] + [s for s, _ in epochs], [s for s, _ in epochs])]
    return {"contender": name, "epochs_s": [round(s, 2) for s in seconds],
            "epoch_s": round(statistics.median(seconds), 2), "accuracy": epochs[-1][1],
            "goal_s": next((round(s, 1) for s, accuracy in epochs if accuracy >= GOAL), None)}


def peer_row(mode, options):
    """The peer in a process of its own, which has MKL's path as it should be."""
    command = [sys.executable, __file__, "--peer", mode, "--threads", str(options.threads), "--peer-epochs",
               str(options.peer_epochs), "--out", "-"]
    done = subprocess.run(command, env=pytorch.environment(), check=True, stdout=subprocess.PIPE, text=True)
    return row(f"PyTorch {mode}", json.loads(done.stdout.splitlines()[-1]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--peer-epochs", type=int, default=1, help="of each mode")
    parser.add_argument("--modes", default="eager,compiled,channels_last,compiled_channels_last")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments(parser)
    return parser.parse_args()


def main():
    options = parse()
    if options.peer:
        print(json.dumps(peer(options.peer, options.threads, options.peer_epochs, EPOCHS)))
        return
    cores = sorted(os.sched_getaffinity(0))
    call = Call("fashion_mnist", options, lambda cpus: contenders.limits(options.limits, cpus))
    paths, modes, rows = pytorch.paths(), options.modes.split(","), []

    def probe():
        for _ in range(4):
            call.probe(cores[:options.threads or len(cores)])

    for index, mode in enumerate([*modes, None]):
        probe()
        if index == len(modes) // 2:
            rows.insert(0, row("Trireme", ours(options.threads)))
            print(Fashion.line(rows[0]), flush=True)
            probe()
        if mode:
            rows.append(peer_row(mode, options))
            print(Fashion.line(rows[-1]), flush=True)
    sys.exit(call.finish(rows, **paths))


if __name__ == "__main__":
    main()
