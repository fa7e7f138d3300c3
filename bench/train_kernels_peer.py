#!/usr/bin/env python3
"""Batch norm, layer norm, cross entropy and dropout of training beside PyTorch eager, in turn.

Usage: train_kernels_peer.py BENCH_VECTOR [THREADS ...]; BENCH_VECTOR is the built bench_vector. Each row runs our
kernel and the peer's ops three times in turn, and prints the median milliseconds of both, their ratio and what
percentage of a copy of the same bytes ours reaches. PyTorch gets channels-last tensors and 1 .. THREADS threads.
"""
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

torch.manual_seed(1)


def image(h, c):
    return torch.randn(16, c, h, h).to(memory_format=torch.channels_last)


def batch_norm(h, c, residual, backward):
    x, weight, bias = image(h, c), torch.ones(c), torch.zeros(c)
    skip = image(h, c) if residual else None
    leaves = [t for t in (x, weight, bias, skip) if t is not None]
    for t in leaves:
        t.requires_grad_(backward)

    def forward():
        y = F.batch_norm(x, None, None, weight, bias, training=True)
        return F.relu_(y if skip is None else y.add_(skip))

    if not backward:
        return forward
    y, up = forward(), image(h, c)
    return lambda: torch.autograd.grad(y, leaves, up, retain_graph=True)


def layer_norm(backward):
    x, weight, bias = torch.randn(1024, 768), torch.ones(768), torch.zeros(768)
    for t in (x, weight, bias):
        t.requires_grad_(backward)
    if not backward:
        return lambda: F.layer_norm(x, (768,), weight, bias)
    y, up = F.layer_norm(x, (768,), weight, bias), torch.randn(1024, 768)
    return lambda: torch.autograd.grad(y, (x, weight, bias), up, retain_graph=True)


def cross_entropy(rows, classes, backward):
    x, target = torch.randn(rows, classes), torch.arange(rows) * 7919 % classes
    x.requires_grad_(backward)
    if not backward:
        return lambda: F.cross_entropy(x, target, reduction="sum")
    loss = F.cross_entropy(x, target, reduction="sum")
    return lambda: torch.autograd.grad(loss, x, retain_graph=True)


def dropout(rows):
    x = torch.randn(rows, 1024)
    return lambda: F.dropout(x, 0.1, training=True)


ROWS = {
    "cross_entropy/1024x50257": lambda: cross_entropy(1024, 50257, False),
    "cross_entropy_grad/1024x50257": lambda: cross_entropy(1024, 50257, True),
    "cross_entropy/64x1000": lambda: cross_entropy(64, 1000, False),
    "cross_entropy_grad/64x1000": lambda: cross_entropy(64, 1000, True),
    "layer_norm/1024x768": lambda: layer_norm(False),
    "layer_norm_grad/1024x768": lambda: layer_norm(True),
    "dropout/L2": lambda: dropout(64),
    "dropout/DRAM": lambda: dropout(16384),
}
for size, channels in ((112, 64), (56, 256), (14, 256), (7, 2048)):
    at = f"{size}x{size}x{channels}"
    for name, residual in (("batch_norm_relu", False), ("batch_norm_add_relu", True)):
        ROWS[f"{name}/{at}"] = lambda s=size, c=channels, r=residual: batch_norm(s, c, r, False)
        ROWS[f"{name}_grad/{at}"] = lambda s=size, c=channels, r=residual: batch_norm(s, c, r, True)


def time_peer(run):
    run()
    times = []
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def time_ours(binary, name, threads):
    out = subprocess.run([binary, f"--benchmark_filter=^{name}/threads:{threads}/", "--benchmark_format=json"],
                         check=True, capture_output=True, text=True).stdout
    one = json.loads(out)["benchmarks"][0]
    return one["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1}[one["time_unit"]], one["percent"]


def main(binary, counts):
    for threads in counts:
        torch.set_num_threads(threads)
        print(f"{threads} threads: kernel, ours ms, PyTorch {torch.__version__} ms, ratio, % of copy")
        for name, make in ROWS.items():
            run, peer, ours = make(), [], []
            for _ in range(3):
                peer.append(time_peer(run))
                ours.append(time_ours(binary, name, threads))
            mine, theirs = statistics.median(t for t, _ in ours), statistics.median(peer)
            percent = statistics.median(p for _, p in ours)
            print(f"{name:38} {mine:9.3f} {theirs:9.3f} {theirs / mine:6.2f} {percent:5.0f}", flush=True)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), [int(a) for a in sys.argv[2:]] or [1, 4])
