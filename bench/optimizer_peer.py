#!/usr/bin/env python3
"""AdamW of PyTorch, eager and fused, on the parameters of src/ops/optim/optimizers_cpu_bench.cc.

Usage: optimizer_peer.py [THREADS]; prints the median time of a step and the bandwidth of its 28 bytes a parameter.
"""
import statistics
import sys
import time

import torch

SHAPES = [(16384, 768), (1024, 768)]
for _ in range(4):
    SHAPES += [(768,), (768,), (768, 2304), (2304,), (768, 768), (768,), (768,), (768,), (768, 3072), (3072,)]
    SHAPES += [(3072, 768), (768,)]


def measure(**options):
    params = [torch.nn.Parameter(torch.randn(s) * 0.1) for s in SHAPES]
    for p in params:
        p.grad = torch.randn_like(p) * 0.01
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, **options)
    times = []
    for _ in range(18):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]), sum(p.numel() for p in params)


torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
for name, options in {"adamw foreach": {"foreach": True}, "adamw fused": {"fused": True}}.items():
    seconds, elements = measure(**options)
    print(f"{name} threads {torch.get_num_threads()}: {seconds * 1e3:.1f} ms, {28 * elements / seconds / 1e9:.1f} GB/s")
