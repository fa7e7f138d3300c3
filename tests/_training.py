# What the training journeys share: small data sets written on the spot, configurations, and logs read back.
import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
INTERRUPTED = 75  # exit code: stopped by a signal, and saved


def write_idx(path, array):
    with open(path, "wb") as file:
        file.write(struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape))
        file.write(array.astype(np.uint8).tobytes())


def make_patterns(directory, samples=2000, side=12):
    """Four noisy patterns as an IDX pair; gives the images and their classes."""
    rng = np.random.default_rng(3)
    patterns = rng.integers(0, 256, (4, side, side))
    labels = rng.integers(0, 4, samples)
    images = np.clip(patterns[labels] * 0.5 + rng.integers(0, 128, (samples, side, side)), 0, 255)
    directory.mkdir()
    write_idx(directory / "train-images-idx3-ubyte", images)
    write_idx(directory / "train-labels-idx1-ubyte", labels)
    return images.astype(np.uint8), labels


def start(config, *more, **how):
    return subprocess.Popen([TRIREME, "train", str(config), "--quiet", *map(str, more)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **how)


def finish(process, limit_s=120):
    """Gives (exit code, stderr)."""
    _, stderr = process.communicate(timeout=limit_s)
    return process.returncode, stderr


def train(config, *more):
    return finish(start(config, *more))


def read_log(directory):
    """The log's lines by event: {"step": [...], "eval": [...], ...}."""
    events = {}
    for line in (Path(directory) / "log.jsonl").read_text().splitlines():
        value = json.loads(line)
        events.setdefault(value["event"], []).append(value)
    return events


def tensors(directory, step):
    """A checkpoint's logical tensors put together from their chunks, by name, without any code of the trainer."""
    checkpoint = directory / f"checkpoints/step-{step:08d}"
    found = {}
    for entry in json.loads((checkpoint / "index.json").read_text())["tensors"]:
        kind = {"f32": np.uint32, "i64": np.uint64}[entry["dtype"]]
        whole = np.zeros(entry["shape"], kind)
        for chunk in entry["chunks"]:
            box = tuple(slice(o, o + s) for o, s in zip(chunk["offset"], chunk["size"]))
            data = np.fromfile(checkpoint / chunk["file"], np.uint8, chunk["bytes"], offset=chunk["byte_offset"])
            whole[box] = data.view(kind).reshape(chunk["size"])
        found[entry["name"]] = whole
    return found
