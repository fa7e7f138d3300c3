"""Networks nobody tuned for beside ONNX Runtime and OpenVINO: ./dev bench zoo [--networks a,b | --sample N].

Networks of torchvision and Transformers (bench/zoo_networks.py) are exported by both PyTorch exporters, each in its own
process, into out/bench/zoo, and measured as `./dev bench models` does. A step that runs on a reference kernel and takes
more than MOST_REFERENCE of a network's time is printed as a defect. What is written: bench/call.py.
"""
import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys

import zoo_networks
from call import ROOT, Call, commit
from contenders import limits
from models import MODES, Model, Row, measured, numbers, row_arguments, teams
from report import Models, Zoo

EXPORTERS = ("dynamo", "script")
FOLDER = ROOT / "out/bench/zoo"
EXPORT_S = 900
TOLERANCE = 2e-3
MOST_REFERENCE = 0.02
SAMPLE = 10
STEP = re.compile(r"^ *\d+ +([\d.]+) us +([\d.]+) % +\S+ GFLOP/s +[\d.]+ GB/s +(\S+) +(\S+) +(\[[^]]*\])?")
SLOW_KERNELS = ("reference", "expand")


class Exported(Model):
    """A network as one exporter wrote it for one batch size; exported on demand by `program`, into `home`."""
    program, home = zoo_networks.__file__, FOLDER

    def __init__(self, name, exporter, batch):
        self.folder = self.home / f"{name}-{exporter}-b{batch}"
        super().__init__(name, self.folder / "model.onnx", self.folder / "model.onnx", TOLERANCE)
        self.exporter, self.batch = exporter, batch

    def export(self):
        """Why it cannot be exported, or None."""
        if (self.folder / "done").exists():
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, self.program, self.name, self.exporter, str(self.batch), self.folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"took more than {EXPORT_S} s"
        if done.returncode == 0:
            (self.folder / "done").touch()
            return None
        return last_words(done.stderr)

    def write_feeds(self, batch, folder):
        shutil.copytree(self.folder / "feeds", folder)


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:200]


def slow_steps(model, cpus):
    """Steps on reference kernels above MOST_REFERENCE of the time: [{op, kernel, share, shape}]."""
    command = [os.environ["TRIREME"], "run", model.ours, "--threads", str(len(cpus)), "--repeat", "3", "--profile"]
    for path in sorted((model.folder / "feeds").glob("*.npy")):
        command += ["--input", f"{path.stem}={path}"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = {}
    for us, _, op, kernel, shape in (m.groups() for m in map(STEP.match, text.splitlines()) if m):
        entry = found.setdefault((op, kernel), {"op": op, "kernel": kernel, "us": 0.0, "shape": shape})
        entry["us"] += float(us)
    total = sum(entry["us"] for entry in found.values()) or 1.0
    return [{"op": e["op"], "kernel": e["kernel"], "shape": e["shape"], "share": round(e["us"] / total, 3)}
            for e in found.values() if e["kernel"] in SLOW_KERNELS and e["us"] > MOST_REFERENCE * total]


class ZooRow(Row):
    """A row that says of itself which stage failed, instead of ending the call."""

    def __init__(self, model, batch, cpus):
        super().__init__(model, batch, cpus)
        self.failed, self.slow = None, None

    def key(self):
        family = zoo_networks.networks()[self.model.name].family
        return {"model": self.model.name, "family": family, "exporter": self.model.exporter, "batch": self.batch,
                "threads": len(self.cpus)}

    def measure(self, options, call, scratch):
        if self.failed:
            return
        why = self.model.export()
        if why:
            self.failed = {"stage": "export", "error": why}
            return
        try:
            super().measure(options, call, scratch)
            if self.slow is None:
                self.slow = slow_steps(self.model, self.cpus)
        except (RuntimeError, OSError, json.JSONDecodeError) as error:
            stage = str(error).split()[0].split(":")[0]
            self.failed = {"stage": stage, "error": last_words(str(error))}
            if stage in MODES and len(self.modes) > 1:  # a peer that cannot run it leaves the row
                del self.modes[stage]
                self.failed = None
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir()
                self.measure(options, call, scratch)

    def facts(self):
        if self.failed:
            return self.key() | self.failed
        return super().facts() | self.key() | {"slow": self.slow}


def line(row):
    if "error" in row:
        return f"{row['model']:30} {row['exporter']:7} batch {row['batch']}  {row['stage']}: {row['error']}"
    defects = "".join(f"  DEFECT {s['op']} on {s['kernel']} {s['shape']}: {100 * s['share']:.0f} %"
                      for s in row["slow"])
    return f"{row['exporter']:7} {Models.line(row)}{defects}"


def chosen(options):
    """(network, exporter) pairs of the call."""
    names = list(zoo_networks.networks())
    exporters = options.exporters.split(",")
    if options.networks:
        unknown = set(options.networks.split(",")) - set(names)
        if unknown:
            sys.exit(f"no such network: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return [(n, e) for n in options.networks.split(",") for e in exporters]
    if options.changed or options.sample:
        draw = random.Random(commit() if options.changed else options.seed)
        names = draw.sample(names, min(len(names), SAMPLE if options.changed else options.sample))
        return [(n, draw.choice(exporters)) for n in names]
    return [(n, e) for n in names for e in exporters]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", help="names, comma-separated; default: all")
    parser.add_argument("--exporters", default=",".join(EXPORTERS))
    parser.add_argument("--sample", type=int, help="so many networks drawn at random, one exporter each")
    parser.add_argument("--seed", default="1", help="of --sample")
    parser.add_argument("--changed", action="store_true", help=f"a sample of {SAMPLE} drawn by the commit")
    parser.add_argument("--batches", default="1,8")
    row_arguments(parser)
    return parser.parse_args()


def main():
    options = parse()
    call = Call("zoo", options, lambda cpus: limits(options.limits, cpus))
    rows = [ZooRow(Exported(name, exporter, batch), batch, cpus) for name, exporter in chosen(options)
            for batch in numbers(options.batches) for cpus in teams(options)]
    facts = measured(rows, options, call, line)
    versions = next((row.versions() for row in rows if row.ready), {})
    code = call.finish(facts, **versions)
    wrong = [r["model"] for r in facts if r.get("stage") == "trireme" or not r.get("agrees", True)]
    if wrong:
        print(f"failed or differ: {', '.join(dict.fromkeys(wrong))}")
    behind = [r for r in facts if "error" not in r and r["ratio_best_peer"][0] < Zoo.LEAST]
    for r in sorted(behind, key=lambda r: r["ratio_best_peer"][0]):
        print(f"behind: {line(r)}")
    sys.exit(1 if wrong else code)


if __name__ == "__main__":
    main()
