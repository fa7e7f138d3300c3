"""PyTorch training one network in its own process: `train_peer.py NETWORK MODE THREADS CPUS [DEVICE [bf16]]`, MODE
eager, compiled, channels_last or compiled_channels_last.

Builds the network with random weights and one batch of random data, or takes one of bench/train_networks.py, with the
weights and data of its file (NETWORK is then onnx:NAME:FOLDER). Runs FIRST_STEPS steps and tells their losses in one
JSON line; then answers each line "milliseconds" of standard input with a JSON line of step times, as bench_train does.
"""
import json
import os
import pathlib
import re
import statistics
import sys
import time

network, mode, threads, cpus = sys.argv[1:5]
device, precision = (sys.argv[5:] + ["cpu", "f32"][len(sys.argv) - 5:])[:2]
os.sched_setaffinity(0, [int(c) for c in cpus.split(",")])

import torch  # noqa: E402  (threads that libraries start at import must inherit the affinity)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

FIRST_STEPS = 3  # as bench/train_bench.cc

torch.set_num_threads(int(threads))
torch.set_default_device(device)
torch.manual_seed(1)


def memory(key):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(key + r":\s+(\d+)", text).group(1)) * 1024


class Block(nn.Module):
    """A residual block, basic or bottleneck, stride in the 3x3."""

    def __init__(self, inside, width, outside, stride, deep):
        super().__init__()
        shape = [(inside, width, 1, 1), (width, width, 3, stride), (width, outside, 1, 1)] if deep else [
            (inside, width, 3, stride), (width, outside, 3, 1)]
        layers = []
        for i, o, k, s in shape:
            layers += [nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        same = inside == outside and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet(counts, deep):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        outside = width * (4 if deep else 1)
        for i in range(count):
            layers.append(Block(inside, width, outside, 2 if stage and i == 0 else 1, deep))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def mnist_cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


class Layer(nn.Module):
    """A transformer layer: pre-norm and causal (GPT-2), or post-norm (BERT)."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(b, s, w))

    def feed(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.causal else "none"))

    def forward(self, x):
        if self.causal:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed(x))


class Transformer(nn.Module):
    """GPT-2 or BERT shapes, the head's weight tied to the embedding."""

    def __init__(self, vocabulary, positions, causal, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.layers = nn.Sequential(*[Layer(width, heads, causal) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.causal = causal
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.layers(x) if self.causal else self.layers(self.norm(x))
        return F.linear(self.norm(x) if self.causal else x, self.tokens.weight)


def own_task():
    """Network, inputs and target of one step."""
    if network == "mnist_cnn":
        return mnist_cnn(), (torch.randn(64, 1, 28, 28),), torch.randint(10, (64,))
    if network.startswith("resnet"):
        deep = network.startswith("resnet50")
        batch = 256 if network == "resnet50_256" else 16 if deep else 32
        return (resnet([3, 4, 6, 3] if deep else [2, 2, 2, 2], deep), (torch.randn(batch, 3, 224, 224),),
                torch.randint(1000, (batch,)))
    if network.startswith("gpt_1.3b"):
        ids = torch.randint(50304, (8 if network.endswith("_8") else 4, 2048))
        return Transformer(50304, 2048, True, 2048, 24, 16), (ids,), torch.roll(ids, -1, 1)
    causal = network.startswith("gpt2")
    vocabulary, shape = (50257, (16, 1024) if network == "gpt2_1024" else (4, 256)) if causal else (30522, (8, 128))
    ids = torch.randint(vocabulary, shape)
    return Transformer(vocabulary, 1024 if causal else 512, causal), (ids,), torch.roll(ids, -1, 1)


def own_optimizer(model):
    if network.startswith(("resnet", "mnist")):
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def file_task(name, folder):
    """The network that was exported to the folder, what was written beside it, and its optimizer."""
    import numpy
    import train_networks
    model = train_networks.tasks()[name].module()
    facts = json.loads((folder / "task.json").read_text())
    with numpy.load(folder / "inputs.npz") as inputs:
        given = tuple(torch.from_numpy(inputs[key]) for key in inputs.files)
    if facts["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=facts["lr"], momentum=facts["momentum"])
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=facts["lr"], fused=True)
    return model, given, torch.from_numpy(numpy.load(folder / "labels.npy")), optimizer


def task():
    if network.startswith("onnx:"):
        _, name, folder = network.split(":", 2)
        return file_task(name, pathlib.Path(folder))
    model, inputs, target = own_task()
    return model, inputs, target, own_optimizer(model)


def channels_last(value):
    """A module or a tensor in the layout that convolutions like best."""
    if isinstance(value, torch.Tensor):
        layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
        return value.to(memory_format=layouts[value.ndim]) if value.ndim in layouts else value
    with torch.no_grad():
        for parameter in value.parameters():
            parameter.data = channels_last(parameter.data)
    return value


def answer(line):
    print(json.dumps(line), flush=True)


def main():
    model, inputs, target, optimizer = task()
    model.train()
    if "channels_last" in mode:
        model, inputs = channels_last(model), tuple(channels_last(x) for x in inputs)
    empty = memory("VmRSS")

    def loss_of(*inputs):
        return F.cross_entropy(model(*inputs).flatten(0, -2), target.flatten())

    run = torch.compile(loss_of) if "compiled" in mode else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = run(*inputs)
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step() for _ in range(FIRST_STEPS)]
    answer({"version": torch.__version__, "losses": losses, "empty_bytes": empty})
    for line in sys.stdin:
        budget, us = float(line) * 1e3, []
        while not us or sum(us) < budget:
            begin = time.perf_counter_ns()
            step()
            us.append((time.perf_counter_ns() - begin) / 1e3)
        answer({"runs": len(us), "median_us": statistics.median(us), "min_us": min(us)})


main()
