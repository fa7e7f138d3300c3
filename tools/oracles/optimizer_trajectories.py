#!/usr/bin/env python3
"""Writes src/ops/optim/testdata/optimizer_trajectories.json: 20 steps of PyTorch's optimizers on a small problem.

Usage: optimizer_trajectories.py > src/ops/optim/testdata/optimizer_trajectories.json
(torch of tools/requirements-oracles.txt)

The gradient of parameter i at p is slope_i * (p - goal_i), slope_i = (i mod 7 + 1) / 8, goal_i = (i mod 5 - 2) / 4:
exact in binary, so that the reader repeats it in the same precision. Muon is also run with its iterate kept in the
parameter's type, which is what `iterate="f32"` means here.
"""
import json

import torch
from torch.optim import _muon

SHAPES = {"wide": [4, 6], "tall": [5, 3], "bias": [7]}
STEPS, RECORDED = 20, (1, 10, 20)


def start(n, dtype):
    return ((torch.arange(n, dtype=dtype) * 37 % 64) - 31) / 32


def make_params(dtype, names):
    out = {}
    for name in names:
        n = torch.Size(SHAPES[name]).numel()
        out[name] = torch.nn.Parameter(start(n, dtype).reshape(SHAPES[name]))
    return out


def run(make, dtype, names):
    params = make_params(dtype, names)
    optimizer = make(list(params.values()))
    recorded = []
    for step in range(1, STEPS + 1):
        for p in params.values():
            i = torch.arange(p.numel())
            slope = ((i % 7 + 1).to(dtype) / 8).reshape(p.shape)
            goal = ((i % 5 - 2).to(dtype) / 4).reshape(p.shape)
            p.grad = slope * (p.detach() - goal)
        optimizer.step()
        if step in RECORDED:
            recorded.append({k: p.detach().double().flatten().tolist() for k, p in params.items()})
    return recorded


def exact_iteration(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


ALL, MATRICES = list(SHAPES), ["wide", "tall"]
o = torch.optim
CASES = {
    "sgd": (lambda p: o.SGD(p, lr=0.125), ALL),
    "sgd_l2": (lambda p: o.SGD(p, lr=0.125, weight_decay=0.0625), ALL),
    "momentum": (lambda p: o.SGD(p, lr=0.125, momentum=0.75, dampening=0.25, weight_decay=0.0625), ALL),
    "nesterov": (lambda p: o.SGD(p, lr=0.125, momentum=0.75, nesterov=True), ALL),
    "adam": (lambda p: o.Adam(p, lr=0.03125, weight_decay=0.0625, foreach=False), ALL),
    "adamw": (lambda p: o.AdamW(p, lr=0.03125, weight_decay=0.0625, foreach=False), ALL),
    "adafactor": (lambda p: o.Adafactor(p, lr=0.25, weight_decay=0.0625, foreach=False), ALL),
    "muon": (lambda p: o.Muon(p, lr=0.03125, weight_decay=0.0625), MATRICES),
    "muon_rms": (lambda p: o.Muon(p, lr=0.03125, nesterov=False, adjust_lr_fn="match_rms_adamw"), MATRICES),
}


def main():
    bf16_iteration = _muon._zeropower_via_newtonschulz
    out = {"steps": list(RECORDED), "shapes": SHAPES, "cases": {}}
    for name, (make, names) in CASES.items():
        _muon._zeropower_via_newtonschulz = exact_iteration
        out["cases"][name] = {str(d).split(".")[1]: run(make, d, names) for d in (torch.float32, torch.float64)}
    _muon._zeropower_via_newtonschulz = bf16_iteration
    out["cases"]["muon_bf16"] = {"float32": run(CASES["muon"][0], torch.float32, MATRICES)}
    print(json.dumps(out, separators=(",", ":")))


main()
