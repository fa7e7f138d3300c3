#!/usr/bin/env python3
"""Writes src/passes/testdata/autocast_mlp.json: one step of a small network under PyTorch's autocast, per type.

Usage: autocast_mlp.py > src/passes/testdata/autocast_mlp.json   (torch of tools/requirements-oracles.txt)
"""
import json

import torch
import torch.nn.functional as F

torch.manual_seed(7)
SHAPES = {"w1": [16, 12], "b1": [16], "scale": [16], "bias": [16], "w2": [16, 16], "b2": [16], "w3": [5, 16], "b3": [5]}
x = torch.randn(6, 12)
labels = torch.tensor([0, 4, 2, 1, 1, 3])
params = {k: (torch.randn(s) * (0.5 if len(s) > 1 else 0.1)).requires_grad_() for k, s in SHAPES.items()}


def step(dtype, loss_scale):
    for p in params.values():
        p.grad = None
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        h = F.gelu(F.linear(x, params["w1"], params["b1"]))
        n = F.layer_norm(h, [16], params["scale"], params["bias"], 1e-5)
        y = F.linear(n, params["w2"], params["b2"]) + h
        logits = F.linear(F.relu(y), params["w3"], params["b3"])
        loss = F.cross_entropy(logits, labels, reduction="sum")
    (loss * loss_scale / 6).backward()
    return {
        "loss": loss.item(),
        "loss_scale": loss_scale,
        "logits": logits.float().flatten().tolist(),
        "grads": {k: p.grad.flatten().tolist() for k, p in params.items()},
    }


out = {"x": x.flatten().tolist(), "labels": labels.tolist(), "shapes": SHAPES}
out["params"] = {k: p.detach().flatten().tolist() for k, p in params.items()}
out["f32"] = step(torch.float32, 1)
out["bf16"] = step(torch.bfloat16, 1)
out["f16"] = step(torch.float16, 1024)


def rounded(v):
    if isinstance(v, dict):
        return {k: rounded(e) for k, e in v.items()}
    if isinstance(v, list):
        return [rounded(e) for e in v]
    return float(f"{v:.9g}") if isinstance(v, float) else v


print(json.dumps(rounded(out), separators=(",", ":")))
