"""Whole models beside ONNX Runtime and OpenVINO: ./dev bench models [--models a,b] [--batches 1,8,32] [--threads 1,0].

The contenders run in turn, a slice of a few hundred milliseconds each, round after round, on the same pinned cores; the
machine's limits are measured in the same rotation. A row quotes medians over rounds, and as its result the median of
the ratios inside a round, which a noisy neighbour cannot move. Outputs are compared, so that no wrong answer wins.
Writes JSON lines; --markdown FILE puts tables between the marks "<!-- models -->" and "<!-- /models -->" of a page.
"""
import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import onnx

import contenders
import report
from encoder_onnx import write_encoder

ROOT = contenders.HERE.parent
PEERS = ["onnxruntime", "openvino"]
PAUSE_S = 0.04  # until a team that spins after its work has gone to sleep


class Model:
    """What is run: files for us and for the peers, how inputs are made, how far outputs may differ."""

    def __init__(self, name, ours, peers, tolerance, int8=False, seq=None):
        self.name, self.ours, self.peers, self.tolerance, self.int8, self.seq = name, ours, peers, tolerance, int8, seq


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


class Race:
    """All contenders on one model, batch and thread count."""

    def __init__(self, model, batch, cpus, options):
        self.model, self.batch, self.cpus, self.options = model, batch, cpus, options

    def start(self, scratch):
        feeds = scratch / "feeds"
        write_feeds(self.model, self.batch, feeds)
        folders = {name: scratch / name for name in ["trireme"] + PEERS}
        for folder in folders.values():
            folder.mkdir()
        self.team = [contenders.ours(os.environ["TRIREME"], self.model.ours, feeds, folders["trireme"], self.cpus)]
        for name in PEERS:
            self.team.append(contenders.peer(name, self.model.peers, feeds, folders[name], self.cpus))
        self.limits = contenders.limits(self.options.limits, self.cpus)
        self.differences = {name: largest_difference(folder, folders["onnxruntime"])
                            for name, folder in folders.items() if name != "onnxruntime"}

    def measure(self):
        """Rounds of {contender: microseconds}, and what the machine could do in each."""
        for contender in self.team:
            contender.run(self.options.slice_ms)
        self.rounds, self.bounds = [], []
        for index in range(self.options.rounds):
            self.bounds.append(self.limits.run(self.options.slice_ms / 2))
            turn = index % len(self.team)
            times = {}
            for contender in self.team[turn:] + self.team[:turn]:
                time.sleep(PAUSE_S)
                times[contender.name] = contender.run(self.options.slice_ms)["median_us"]
            self.rounds.append(times)

    def row(self):
        medians = {c.name: statistics.median(r[c.name] for r in self.rounds) for c in self.team}
        bound = {key: statistics.median(b[key] for b in self.bounds) for key in self.bounds[0]}
        gflop, weights = self.team[0].ready["gflop"], self.team[0].ready["weight_bytes"]
        peak = bound["int8_gops" if self.model.int8 else "f32_gflops"]
        bound_us = max(gflop / peak * 1e6, weights / bound["read_gbs"] / 1e3)
        row = {"model": self.model.name, "batch": self.batch, "threads": len(self.cpus), "rounds": len(self.rounds)}
        row["limits"] = bound
        row["gflop"] = round(gflop, 4)
        row["us"] = {name: round(us, 1) for name, us in medians.items()}
        row["roofline"] = {name: round(bound_us / us, 3) for name, us in medians.items()}
        row["ratio"] = {name: self.ratio(name) for name in PEERS}
        row["ratio_best_peer"] = self.ratio(min(PEERS, key=medians.get))
        row["difference"] = {name: float(f"{d:.2g}") for name, d in self.differences.items()}
        row["agrees"] = self.differences["trireme"] <= self.model.tolerance
        row["peak_mib"] = {c.name: round(c.peak_bytes() / 2**20, 1) for c in self.team}
        row["empty_mib"] = {c.name: round(c.ready.get("empty_bytes", 0) / 2**20, 1) for c in self.team}
        row["first_ms"] = {c.name: round(c.ready.get("first_ms", c.ready_ms), 1) for c in self.team}
        row["versions"] = {c.name: c.ready["version"] for c in self.team if "version" in c.ready}
        return row

    def ratio(self, name):
        """Peer's time / our time: [median, lowest, highest] over rounds."""
        ratios = [r[name] / r["trireme"] for r in self.rounds]
        return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]

    def close(self):
        for contender in self.team + [self.limits]:
            contender.close()


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def commit():
    return subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                          check=False).stdout.strip()


def race(model, batch, cpus, options):
    with tempfile.TemporaryDirectory() as folder:
        one = Race(model, batch, cpus, options)
        one.start(pathlib.Path(folder))
        try:
            one.measure()
            return one.row()
        finally:
            one.close()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names, comma-separated; default: all")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--threads", default="1,0", help="0: all cores this process may use")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slice-ms", type=float, default=300)
    parser.add_argument("--out", default=str(ROOT / "out/bench/models.jsonl"))
    parser.add_argument("--markdown", help="page that gets the tables, for example docs/performance.md")
    parser.add_argument("--limits", default=str(pathlib.Path(os.environ["TRIREME"]).parent / "bench_limits"))
    return parser.parse_args()


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    options = parse()
    allowed = sorted(os.sched_getaffinity(0))
    rows = []
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(options.out, "w", encoding="utf-8") as out:
        models = find_models(pathlib.Path(folder))
        wanted = options.models.split(",") if options.models else [m.name for m in models]
        for model in (m for m in models if m.name in wanted):
            for threads in numbers(options.threads):
                for batch in numbers(options.batches):
                    row = {"machine": machine(), "commit": commit()}
                    row |= race(model, batch, allowed[:threads or len(allowed)], options)
                    rows.append(row)
                    print(json.dumps(row), file=out, flush=True)
                    print(report.line(row), flush=True)
    print(report.summary(rows))
    if options.markdown:
        report.into_page(pathlib.Path(options.markdown), "models", report.markdown(rows))
    sys.exit(0 if all(row["agrees"] for row in rows) else 1)


if __name__ == "__main__":
    main()
