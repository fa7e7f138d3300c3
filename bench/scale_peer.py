"""PyTorch data-parallel training (DDP over gloo): `scale_peer.py MODE NETWORK RANKS THREADS ROWS CPUS`, MODE
eager or compiled (the loss inside what is compiled).

The networks of bench_scale with random weights and data; ROWS samples a step on each rank, CPUS shared out among the
ranks in equal runs. Rank 0 says in one JSON line what it trains and answers each line "milliseconds" of standard input
with a JSON line of step times, as bench_scale does. One rank trains without DDP.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

mode, network, ranks, threads, rows = *sys.argv[1:3], *map(int, sys.argv[3:6])
cpus = [int(c) for c in sys.argv[6].split(",")]
rank = int(sys.argv[7]) if len(sys.argv) > 7 else 0
store = sys.argv[8] if len(sys.argv) > 8 else tempfile.mkdtemp(prefix="scale_peer") + "/store"
each = max(1, len(cpus) // ranks)
os.sched_setaffinity(0, cpus[rank * each:(rank + 1) * each])
os.environ["OMP_NUM_THREADS"] = str(threads)

import torch  # noqa: E402  (threads that libraries start at import must inherit the affinity)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(threads)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        same = inside == outside and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet18():
    """For images of 32 x 32: a 3x3 stem without pool."""
    layers, inside = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for stage in range(4):
        for i in range(2):
            layers.append(Block(inside, 64 << stage, 2 if stage and i == 0 else 1))
            inside = 64 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The head's weight is the embedding's."""

    def __init__(self, vocabulary=8192, positions=128, width=256, heads=8, layers=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.layers(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        return F.linear(self.norm(x), self.tokens.weight)


def task():
    torch.manual_seed(3 + rank)
    if network == "resnet18":
        return resnet18(), torch.randn(rows, 3, 32, 32), torch.randint(10, (rows,))
    ids = torch.randint(8192, (rows, 128))
    return Gpt(), ids, torch.randint(8192, (rows, 128))


def say(line):
    if rank == 0:
        print(json.dumps(line), flush=True)


class Peer:
    def __init__(self):
        model, self.x, self.target = task()
        model.train()
        if network == "resnet18":
            model = model.to(memory_format=torch.channels_last)  # the layout its convolutions like best
            self.x = self.x.to(memory_format=torch.channels_last)
            self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
        self.loss = torch.compile(self.loss_of) if mode == "compiled" else self.loss_of
        self.last_s = 1.0

    def loss_of(self, x):
        return F.cross_entropy(self.model(x).flatten(0, -2), self.target.flatten())

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.x)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def from_leader(self, value):
        message = torch.tensor([float(value)], dtype=torch.float64)
        if ranks > 1:
            dist.broadcast(message, 0)
        return message.item()

    def run(self, milliseconds):
        times = []
        for _ in range(int(self.from_leader(max(1, milliseconds * 1e-3 / self.last_s)))):
            begin = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - begin)
        self.last_s = statistics.median(times)
        say({"runs": len(times), "median_us": self.last_s * 1e6, "min_us": min(times) * 1e6})


def main():
    others = []
    if rank == 0:
        others = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:7], str(r), store], stdin=subprocess.DEVNULL)
                  for r in range(1, ranks)]
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    peer = Peer()
    first = peer.step()
    peer.step()
    say({"version": torch.__version__, "parameters": peer.parameters, "first_loss": first})
    while True:
        line = sys.stdin.readline() if rank == 0 else ""
        milliseconds = peer.from_leader(float(line) if line else -1)
        if milliseconds < 0:
            break
        peer.run(milliseconds)
    if ranks > 1:
        dist.destroy_process_group()
    for other in others:
        other.wait()


main()
