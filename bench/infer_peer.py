"""PyTorch running one network in its own process: `infer_peer.py NETWORK MODE BATCH DEVICE PRECISION`.

NETWORK: resnet50, bert (128 tokens, embeddings out), llama (8 billion parameters; llama:PROMPT decodes behind so many
tokens, llama_prefill:PROMPT reads them), or one of these with _tiny behind its name. MODE: eager or compiled; compiled
decoding runs as CUDA graphs over a static cache that is updated in place. Weights and inputs are random. Inputs of the
classic networks come from pinned memory and results go back to it in every run, as a server has it. Answers each line
"milliseconds" of standard input with a JSON line of times.
"""
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

network, mode, batch, device, precision = sys.argv[1:6]
batch = int(batch)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
HAS_GPU = device != "cpu"
torch.manual_seed(1)
name, _, length = network.partition(":")
is_tiny = name.endswith("_tiny")
name = name.removesuffix("_tiny")


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, around a residual."""

    def __init__(self, inside, width, stride):
        super().__init__()
        outside = 4 * width
        layers = []
        for i, o, k, s in ((inside, width, 1, 1), (width, width, 3, stride), (width, outside, 1, 1)):
            layers += [nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        same = inside == outside and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False),
                                                             nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet50():
    counts, first = ((1, 1), 8) if is_tiny else ((3, 4, 6, 3), 64)
    layers = [nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = first
    for stage, count in enumerate(counts):
        for i in range(count):
            layers.append(Bottleneck(inside, first << stage, 2 if stage and i == 0 else 1))
            inside = 4 * first << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Bert(nn.Module):
    """The encoder; embeddings out."""

    def __init__(self, width, layers, heads, vocabulary=30522):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0, "gelu", batch_first=True) for _ in range(layers))

    def forward(self, ids):
        x = self.norm(self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layers:
            x = layer(x)
        return x


SHAPE = dict(width=4096, layers=32, heads=32, kv_heads=8, inner=14336, vocabulary=128256)
TINY = dict(width=32, layers=2, heads=4, kv_heads=2, inner=48, vocabulary=96)


class LlamaLayer(nn.Module):
    """Pre-norm attention with grouped keys, and SwiGLU. The cache is written in place at the positions given."""

    def __init__(self, width, heads, kv_heads, inner, positions):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        for cache in ("keys", "values"):
            self.register_buffer(cache, torch.zeros(batch, kv_heads, positions, self.head))

    def forward(self, x, at, turn, mask):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, -1, self.head).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(
            [w, self.kv_heads * self.head, self.kv_heads * self.head], dim=2))
        q, k = rotated(q, turn), rotated(k, turn)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        if mask is None:  # a prompt: its own keys are all there are
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            y = F.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotated(x, turn):
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Llama(nn.Module):
    """The next token of each sequence: the likeliest."""

    def __init__(self, positions, width, layers, heads, kv_heads, inner, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, inner, positions) for _ in range(layers))
        self.norm, self.scores = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        head = width // heads
        angle = torch.arange(positions)[:, None] * 500000.0 ** (-torch.arange(0, head, 2) / head)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("places", torch.arange(positions))

    def forward(self, ids, at):
        x = self.tokens(ids)
        mask = None if ids.shape[1] > 1 else (self.places <= at)[None, None, None, :]
        turn = self.cos[at], self.sin[at]
        for layer in self.layers:
            x = layer(x, at, turn, mask)
        return self.scores(self.norm(x[:, -1])).argmax(dim=-1, keepdim=True)


def settled(model):
    """Random weights in the precision on the device; those of norms stay as they are."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
    return model.eval()


def make(build):
    previous = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[precision])
    with torch.device(device):
        model = settled(build())
    torch.set_default_dtype(previous)
    return model


def compiled(call, graphs):
    if mode == "eager":
        return call
    return torch.compile(call, mode="reduce-overhead" if graphs and HAS_GPU else None, dynamic=False)


def classic():
    """Input in pinned memory to result in pinned memory."""
    if name == "resnet50":
        model = make(resnet50).to(memory_format=torch.channels_last)
        given = torch.randn(batch, 3, 64 if is_tiny else 224, 64 if is_tiny else 224)
    else:
        model = make(lambda: Bert(32, 2, 4) if is_tiny else Bert(768, 12, 12))
        given = torch.randint(30522, (batch, 16 if is_tiny else 128))
    call = compiled(model, graphs=True)
    given = given.pin_memory() if HAS_GPU else given

    def once():
        x = given.to(device, non_blocking=True)
        if x.is_floating_point():
            x = x.to(DTYPES[precision]).contiguous(memory_format=torch.channels_last)
        return call(x).float().cpu()

    return once


def language():
    """A step of decoding behind a prompt, or a prompt."""
    prompt = int(length or 16)
    shape = TINY if is_tiny else SHAPE
    model = make(lambda: Llama(prompt + 1, **shape))
    decodes = name == "llama"
    call = compiled(model, graphs=decodes)
    ids = torch.randint(shape["vocabulary"], (batch, 1 if decodes else prompt), device=device)
    at = torch.tensor([prompt], device=device) if decodes else torch.arange(prompt, device=device)
    return lambda: call(ids, at).cpu()


def answer(line):
    print(json.dumps(line), flush=True)


@torch.no_grad()
def main():
    begin = time.perf_counter()
    once = classic() if name in ("resnet50", "bert") else language()
    for _ in range(4):
        once()
    answer({"version": torch.__version__, "first_ms": (time.perf_counter() - begin) * 1e3})
    for line in sys.stdin:
        budget, us = float(line) * 1e3, []
        while not us or sum(us) < budget:
            start = time.perf_counter_ns()
            once()
            us.append((time.perf_counter_ns() - start) / 1e3)
        answer({"runs": len(us), "median_us": statistics.median(us), "min_us": min(us)})


main()
