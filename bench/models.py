"""Whole models beside ONNX Runtime and OpenVINO: ./dev bench models [--models a,b] [--batches 1,8,32] [--threads 1,0].

A call goes over all rows several times (--passes). On a row the contenders run in turn, a slice of a few hundred
milliseconds each, round after round, on the same cores; the machine's limits are measured in the same rotation. The
first pass runs the peers in each of their modes, later ones in the mode that was fastest on that row. A row quotes
medians over rounds, and as its result the median of the ratios inside a round, which a noisy neighbour cannot move.
Outputs are compared, so that no wrong answer wins. What is written: bench/call.py.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import onnx

import contenders
from call import ROOT, Call, arguments
from report import Models
from encoder_onnx import write_encoder

MODES = {"onnxruntime": ["free", "pinned"], "openvino": ["latency", "pinned", "throughput"]}
PAUSE_S = 0.04  # until a team that spins after its work has gone to sleep


class Model:
    """What is run: files for us and for the peers, how inputs are made, how far outputs may differ."""

    def __init__(self, name, ours, peers, tolerance, int8=False, seq=None):
        self.name, self.ours, self.peers, self.tolerance, self.int8, self.seq = name, ours, peers, tolerance, int8, seq

    def write_feeds(self, batch, folder):
        write_feeds(self, batch, folder)


def find_models(scratch):
    trireme = os.environ["TRIREME"]
    data, encoder = os.environ.get("TRIREME_SHARED_DATA"), os.environ.get("TRIREME_ENCODER")
    models = []
    if data:
        zoo = pathlib.Path(data) / "onnx-models"
        for name, folder, tolerance, int8 in (
                ("mobilenetv2", "mobilenetv2_fp32_derived", 1e-3, False),
                ("mobilenetv2_int8", "mobilenetv2_qdq", 0.2, True),
                ("kwt1", "kwt1_keyword_derived", 1e-3, False)):
            path = zoo / folder / "model.onnx"
            models.append(Model(name, path, path, tolerance, int8))
    resnet = scratch / "resnet50.onnx"
    subprocess.run([trireme, "export", "zoo:resnet50", resnet], check=True)
    models.append(Model("resnet50", resnet, resnet, 1e-3))
    if encoder:
        minilm = scratch / "minilm.onnx"
        write_encoder(encoder, minilm)
        models.append(Model("minilm_128", encoder, minilm, 1e-3, seq=128))
    return models


def write_feeds(model, batch, folder):
    """FOLDER/<input>.npy: the model's own test input, repeated, where there is one; else seeded random values."""
    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(1)
    given = pathlib.Path(model.peers).parent / "test_data_set_0"
    initialized = set()
    graph = onnx.load(str(model.peers), load_external_data=False).graph
    initialized = {tensor.name for tensor in graph.initializer}
    for i, value in enumerate(v for v in graph.input if v.name not in initialized):
        sample = given / f"input_{i}.pb"
        dims = [d.dim_value or None for d in value.type.tensor_type.shape.dim]
        if sample.exists():
            array = onnx.numpy_helper.to_array(onnx.load_tensor(str(sample)))
            array = numpy.repeat(array[:1], batch, axis=0)
        elif value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            shape = (batch, model.seq)
            array = random.integers(1000, 20000, shape) if "ids" in value.name else numpy.ones(shape)
            array = array.astype(numpy.int64)
        else:
            array = random.standard_normal([batch] + dims[1:]).astype(numpy.float32)
        numpy.save(folder / f"{value.name}.npy", array)


def largest_difference(folder, reference):
    """max |a - b| / max |b| over all outputs of `reference`; infinity where one is missing or of another shape."""
    worst = 0.0
    for path in sorted(reference.glob("*.npy")):
        if not (folder / path.name).exists():
            return math.inf
        a, b = numpy.load(folder / path.name).astype(float), numpy.load(path).astype(float)
        if a.shape != b.shape or not numpy.isfinite(a).all():
            return math.inf
        worst = max(worst, float(numpy.abs(a - b).max() / max(numpy.abs(b).max(), 1e-30)))
    return worst


def first_ms(ready):
    """Until the first result: ours from the start of the process, a peer's from the start of loading. Results are
    written to disk afterwards."""
    return ready.get("first_ms", ready["ready_ms"] - ready.get("write_ms", 0))


class Row:
    """All contenders on one model, batch and thread count, over all passes of a call."""

    def __init__(self, model, batch, cpus):
        self.model, self.batch, self.cpus = model, batch, cpus
        # on one thread there is nothing to pin, and one stream
        self.modes = {name: modes if len(cpus) > 1 else modes[:1] for name, modes in MODES.items()}
        self.rounds, self.bounds, self.differences, self.ready, self.peaks = [], [], {}, {}, {}

    def measure(self, options, call, scratch):
        """One pass: opens the contenders, compares their outputs, runs them in turn."""
        feeds = scratch / "feeds"
        self.model.write_feeds(self.batch, feeds)
        team = []
        try:
            self.open(team, feeds, scratch)
            for contender in team:
                contender.run(options.slice_ms / 2)
            for _ in range(options.rounds):
                self.bounds.append(call.probe(self.cpus))
                turn = len(self.rounds) % len(team)
                times = {}
                for contender in team[turn:] + team[:turn]:
                    time.sleep(PAUSE_S)
                    times[contender.name] = contender.run(options.slice_ms)["median_us"]
                self.rounds.append(times)
            self.peaks |= {c.name: c.peak_bytes() for c in team}
        finally:
            for contender in team:
                contender.close()
        self.modes = {name: [self.best(name)] for name in self.modes}

    def open(self, team, feeds, scratch):
        """Adds the contenders to `team`, one by one: what is in it when one fails still has to be closed."""
        folder = scratch / "trireme"
        folder.mkdir()
        team.append(contenders.ours(os.environ["TRIREME"], self.model.ours, feeds, folder, self.cpus))
        folders = {"trireme": folder}
        for name, modes in self.modes.items():
            for mode in modes:
                folders[f"{name}:{mode}"] = folder = scratch / f"{name}-{mode}"
                folder.mkdir()
                team.append(contenders.peer(name, mode, self.model.peers, feeds, folder, self.cpus))
        reference = next(folder for key, folder in folders.items() if key != "trireme")
        for key, folder in folders.items():
            if folder != reference:
                self.differences[key] = max(self.differences.get(key, 0), largest_difference(folder, reference))
        for contender in team:
            self.ready.setdefault(contender.name, contender.ready | {"ready_ms": contender.ready_ms})

    def us(self, key):
        return statistics.median(r[key] for r in self.rounds if key in r)

    def best(self, name):
        """The fastest mode of a peer so far."""
        return min(self.modes[name], key=lambda mode: self.us(f"{name}:{mode}"))

    def ratio(self, key):
        """Peer's time / our time: [median, lowest, highest] over rounds."""
        ratios = [r[key] / r["trireme"] for r in self.rounds if key in r]
        return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]

    def facts(self):
        keys = {"trireme": "trireme"} | {name: f"{name}:{self.best(name)}" for name in self.modes}
        bound = {key: statistics.median(b[key] for b in self.bounds) for key in self.bounds[0]}
        ours = self.ready["trireme"]
        peak = bound["int8_gops" if self.model.int8 else "f32_gflops"]
        bound_us = max(ours["gflop"] / peak * 1e6, ours["weight_bytes"] / bound["read_gbs"] / 1e3)
        us = {name: self.us(key) for name, key in keys.items()}
        ready = {name: self.ready[key] for name, key in keys.items()}
        fastest = min(self.modes, key=us.get)
        return {"model": self.model.name, "batch": self.batch, "threads": len(self.cpus), "rounds": len(self.rounds),
                "gflop": round(ours["gflop"], 4), "mode": {name: self.best(name) for name in self.modes},
                "us": {name: round(value, 1) for name, value in us.items()},
                "us_of_modes": {key: round(self.us(key), 1) for key in self.ready if key != "trireme"},
                "roofline": {name: round(bound_us / value, 3) for name, value in us.items()},
                "ratio": {name: self.ratio(keys[name]) for name in self.modes},
                "best_peer": fastest, "ratio_best_peer": self.ratio(keys[fastest]),
                "difference": {key: float(f"{d:.2g}") for key, d in self.differences.items()},
                "agrees": self.differences["trireme"] <= self.model.tolerance,
                "peak_mib": {name: round(self.peaks[key] / 2**20, 1) for name, key in keys.items()},
                "empty_mib": {name: round(r.get("empty_bytes", 0) / 2**20, 1) for name, r in ready.items()},
                "first_ms": {name: round(first_ms(r), 1) for name, r in ready.items()}}

    def versions(self):
        return {key.split(":")[0]: ready["version"] for key, ready in self.ready.items() if "version" in ready}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names, comma-separated; default: all")
    parser.add_argument("--batches", default="1,8,32")
    row_arguments(parser, passes=3, rounds=2, slice_ms=300)
    return parser.parse_args()


def row_arguments(parser, threads="1,0", passes=2, rounds=3, slice_ms=150):
    """What every benchmark takes that measures Rows, with its defaults."""
    parser.add_argument("--threads", default=threads, help="0: all cores this process may use")
    parser.add_argument("--passes", type=int, default=passes, help="over all rows")
    parser.add_argument("--rounds", type=int, default=rounds, help="on a row in each pass")
    parser.add_argument("--slice-ms", type=float, default=slice_ms)
    arguments(parser)


def numbers(text):
    return [int(word) for word in text.split(",")]


def teams(options):
    """The processors of each thread count of --threads."""
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[:threads] for threads in dict.fromkeys(n or len(allowed) for n in numbers(options.threads))]


def measured(rows, options, call, line):
    """The facts of all rows after all passes; what a pass has found is printed as `line` says it."""
    for index in range(options.passes):
        for row in rows:
            with tempfile.TemporaryDirectory() as scratch:
                row.measure(options, call, pathlib.Path(scratch) / "row")
            print(f"pass {index + 1}  {line(row.facts())}", flush=True)
    return [row.facts() for row in rows]


def main():
    options = parse()
    call = Call("models", options, lambda cpus: contenders.limits(options.limits, cpus))
    with tempfile.TemporaryDirectory() as folder:
        models = find_models(pathlib.Path(folder))
        wanted = options.models.split(",") if options.models else [m.name for m in models]
        rows = [Row(model, batch, cpus) for model in models if model.name in wanted for cpus in teams(options)
                for batch in numbers(options.batches)]
        facts = measured(rows, options, call, Models.line)
    code = call.finish(facts, **rows[0].versions())
    sys.exit(code if all(row["agrees"] for row in facts) else 1)


if __name__ == "__main__":
    main()
