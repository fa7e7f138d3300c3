#!/usr/bin/env python3
"""Writes src/ops/norm/testdata/training_norms.json: PyTorch's batch norm over three steps, and its cross entropy.

Usage: training_norms.py > src/ops/norm/testdata/training_norms.json
(torch of tools/requirements-oracles.txt)

Inputs are (37 i + 11 k mod 64 - 31) / 16 for element i of tensor k: exact in binary, the reader makes them again.
"""
import json

import torch


def tensor(k, *shape):
    n = torch.Size(shape).numel()
    return (((torch.arange(n, dtype=torch.float64) * 37 + 11 * k) % 64 - 31) / 16).reshape(shape)


def batch_norm(residual):
    """relu(bn(x) + residual?) in double, channels first; running statistics after each of three steps."""
    shape = (3, 4, 5, 2)
    bn = torch.nn.BatchNorm2d(4, eps=1e-3, momentum=0.1).double()
    with torch.no_grad():
        bn.weight.copy_(tensor(1, 4))
        bn.bias.copy_(tensor(2, 4))
    steps = []
    for step in range(3):
        x, skip = tensor(10 + step, *shape).requires_grad_(), tensor(20 + step, *shape).requires_grad_()
        y = torch.relu(bn(x) + skip if residual else bn(x))
        wanted = [x, bn.weight, bn.bias] + ([skip] if residual else [])
        grads = torch.autograd.grad(y, wanted, tensor(30 + step, *shape))
        steps.append({"y": y.flatten().tolist(), "grads": [g.flatten().tolist() for g in grads],
                      "running_mean": bn.running_mean.tolist(), "running_var": bn.running_var.tolist()})
    return steps


def cross_entropy(smoothing):
    """Sum over the rows whose target is not -100."""
    x, target = tensor(40, 6, 9).requires_grad_(), torch.tensor([0, 8, -100, 3, -100, 5])
    loss = torch.nn.functional.cross_entropy(x, target, reduction="sum", label_smoothing=smoothing)
    return {"smoothing": smoothing, "loss": loss.item(), "grad": torch.autograd.grad(loss, x)[0].flatten().tolist()}


print(json.dumps({"torch": torch.__version__, "plain": batch_norm(False), "residual": batch_norm(True),
                  "cross_entropy": [cross_entropy(s) for s in (0.0, 0.1)]}))
