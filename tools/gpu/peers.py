# The same work by PyTorch on the same device, each network in a process of its own.
import importlib.util
import json
import os
import sys


def has_torch():
    return importlib.util.find_spec("torch") is not None


def timed(check, command, limit_s, slice_ms):
    """All fields of the JSON lines that a peer prints, or why there are none."""
    done = check.run(command, limit_s, text=f"{slice_ms}\n", env=check.plain_env)
    row = {key: value for line in done.lines if line.startswith("{") for key, value in json.loads(line).items()}
    if "median_us" not in row:
        row["why"] = done.why()
    return row


def training(check, networks):
    """Steps in bf16, eager first: compiling takes long."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:8]))
    for turn in (0, 1):
        for network, modes in networks:
            if check.left() < 20:
                return check.verdict("peers", "skipped", network=network, why="the budget is spent")
            command = [sys.executable, check.root / "bench/train_peer.py", network, modes[turn], 8, cores, "cuda",
                       "bf16"]
            check.add("peers", network=network, precision="bf16", contender=f"pytorch {modes[turn]}",
                      **timed(check, command, 110, 1500))
    return None


# Network of bench/infer_peer.py, batch, and the network under which our own row stands.
INFERENCE = [("llama:536", 1, "llama"), ("llama:536", 64, "llama"), ("llama_prefill:2048", 1, "llama"),
             ("resnet50", 32, "zoo:resnet50"), ("bert", 32, "zoo:bert")]


def inference(check, networks, mode="compiled"):
    """Classic networks with their copies, and decoding over static caches as CUDA graphs."""
    precision = "f32" if check.quick else "bf16"
    for network, batch, ours in networks:
        if check.left() < 20:
            return check.verdict("peers", "skipped", network=network, why="the budget is spent")
        device = "cpu" if check.device == "emulated" else "cuda"
        command = [sys.executable, check.root / "bench/infer_peer.py", network, mode, batch, device, precision]
        check.add("peers", network=network, batch=batch, precision=precision, beside=ours,
                  contender=f"pytorch {mode}", **timed(check, command, 90, 1000))
    return None


def peers(check, networks):
    if check.quick or not has_torch():
        return check.verdict("peers", "skipped", why="no PyTorch, or a quick check")
    inference(check, INFERENCE)
    return training(check, networks)
