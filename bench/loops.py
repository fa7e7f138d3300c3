"""Loops of ONNX beside ONNX Runtime and OpenVINO: ./dev bench loops [--loops a,b] [--threads 1,0].

Models of bench/loop_networks.py, whose time is spent in Loop, Scan and If, measured as `./dev bench models` does. A
peer that cannot read a file leaves its row. What is written: bench/call.py.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import loop_networks
from call import Call
from contenders import limits
from models import Model, Row, measured, row_arguments, teams
from report import Loops

TOLERANCE = 1e-3


class LoopModel(Model):
    """A model of loop_networks, written into `folder`."""

    def __init__(self, name, folder):
        self.folder = folder / name
        loop_networks.write(name, self.folder)
        super().__init__(name, self.folder / "model.onnx", self.folder / "model.onnx", TOLERANCE)

    def write_feeds(self, batch, folder):
        shutil.copytree(self.folder / "feeds", folder)


class LoopRow(Row):
    """A row that peers leave which cannot run its model."""

    def measure(self, options, call, scratch):
        try:
            super().measure(options, call, scratch / str(len(self.modes)))
        except (RuntimeError, json.JSONDecodeError) as error:
            name = str(error).split(":", maxsplit=1)[0].split()[0]
            if name not in self.modes or len(self.modes) == 1:
                raise
            print(f"{self.model.name}: {name} cannot run it", flush=True)
            del self.modes[name]
            self.measure(options, call, scratch)


def line(row):
    against = "  ".join(f"{n} {row['us'][n]:8.1f} us ({row['ratio'][n][0]:.2f}x)" for n in row["ratio"])
    flag = "" if row["agrees"] else f"  OUTPUTS DIFFER {row['difference']['trireme']}"
    return f"{row['model']:12} threads {row['threads']:2}  ours {row['us']['trireme']:8.1f} us  {against}{flag}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", help="names, comma-separated; default: all")
    row_arguments(parser, threads="1")
    return parser.parse_args()


def main():
    options = parse()
    call = Call("loops", options, lambda cpus: limits(options.limits, cpus))
    names = options.loops.split(",") if options.loops else list(loop_networks.NETWORKS)
    with tempfile.TemporaryDirectory() as folder:
        models = [LoopModel(name, pathlib.Path(folder)) for name in names]
        rows = [LoopRow(model, 1, cpus) for model in models for cpus in teams(options)]
        facts = measured(rows, options, call, line)
    versions = {name: version for row in rows for name, version in row.versions().items()}
    code = call.finish(facts, **versions)
    sys.exit(code if all(row["agrees"] for row in facts) else 1)


if __name__ == "__main__":
    main()
