"""Quantized networks nobody tuned for: ./dev bench quantized [--networks a,b] [--forms u8-channel,...].

Networks of bench/zoo_networks.py, exported as `./dev bench zoo` does and made 8-bit by ONNX Runtime's quantizer
(bench/quantize_network.py), beside ONNX Runtime and OpenVINO on the same file and beside our own f32 on the file it was
made of. Products whose operands are all quantized and that did not run in integers are counted and printed as a defect.
What is written: bench/call.py.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

import onnx

import contenders
import quantize_network
import report
import zoo_networks
from call import ROOT, Call
from models import Model, measured, numbers, row_arguments, teams
from zoo import Exported, ZooRow, last_words

NETWORKS = ("resnet18", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "regnet_x_800mf", "shufflenet_v2_x1_0",
            "densenet121", "bert_base", "distilbert", "deit")
FORMS = ("u8-channel", "u8-tensor", "s8-channel", "s8-tensor")
QUANTIZE_S = 900
TOLERANCE = 0.2  # of the largest output: a step of a code that rounds the other way goes through all later layers
PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
EIGHT_BITS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
STEP = re.compile(r"^ *\d+ +[\d.]+ us +[\d.]+ % +\S+ GFLOP/s +[\d.]+ GB/s +(\S+) ")
INTEGER_STEPS = ("qconv_nhwc", "qlinear", "qmatmul")


class Quantized(Exported):
    """A network as the script exporter wrote it, quantized on demand."""

    def __init__(self, name, form, batch):
        self.source = Exported(name, "script", batch)
        super().__init__(name, form, batch)
        self.folder = ROOT / f"out/bench/quantized/{name}-{form}-b{batch}"
        Model.__init__(self, name, self.folder / "model.onnx", self.folder / "model.onnx", TOLERANCE, int8=True)

    def export(self):
        if (self.folder / "done").exists():
            return None
        why = self.source.export()
        if why:
            return why
        shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, quantize_network.__file__, self.source.folder, self.exporter, self.folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUANTIZE_S, check=False)
        if done.returncode != 0:
            return last_words(done.stderr)
        (self.folder / "done").touch()
        return None


def quantized_products(path):
    """Products of the file whose two operands are 8-bit values, or that are 8-bit operators."""
    graph = onnx.load(path).graph
    types = {t.name: t.data_type for t in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}

    def is_code(name):
        node = made.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return False
        zero = node.input[2] if len(node.input) > 2 else None
        return zero is None or types.get(zero) in EIGHT_BITS
    return sum((node.op_type in PRODUCTS and all(is_code(name) for name in node.input[:2])) or
               node.op_type in ("QLinearConv", "QLinearMatMul") for node in graph.node)


def integer_steps(model, cpus):
    command = [os.environ["TRIREME"], "run", model.ours, "--threads", str(len(cpus)), "--profile"]
    for path in sorted((model.folder / "feeds").glob("*.npy")):
        command += ["--input", f"{path.stem}={path}"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return sum(m[1] in INTEGER_STEPS for m in map(STEP.match, text.splitlines()) if m)


class QuantizedRow(ZooRow):
    """A ZooRow in which our f32 runs, too."""

    def __init__(self, model, batch, cpus):
        super().__init__(model, batch, cpus)
        self.products = None

    def open(self, team, feeds, scratch):
        super().open(team, feeds, scratch)
        outputs = scratch / "f32"
        outputs.mkdir()
        f32 = contenders.ours(os.environ["TRIREME"], self.model.source.ours, feeds, outputs, self.cpus)
        f32.name = "f32"
        team.append(f32)

    def measure(self, options, call, scratch):
        super().measure(options, call, scratch)
        if self.products is None and not self.failed:
            self.products = {"in_file": quantized_products(self.model.ours),
                             "in_integers": integer_steps(self.model, self.cpus)}

    def facts(self):
        facts = super().facts()
        if "error" in facts:
            return facts
        return facts | {"form": self.model.exporter, "ratio_f32": self.ratio("f32"), "products": self.products}


def line(row):
    if "error" in row:
        return f"{row['model']:30} {row['exporter']:10}  {row['stage']}: {row['error']}"
    left = row["products"]["in_file"] - row["products"]["in_integers"]
    defects = f"  DEFECT {left} of {row['products']['in_file']} products not in integers" if left > 0 else ""
    defects += "".join(f"  DEFECT {s['op']} on {s['kernel']} {s['shape']}: {100 * s['share']:.0f} %"
                       for s in row["slow"])
    return f"{row['exporter']:10} {report.Models.line(row)}  f32 {row['ratio_f32'][0]:.2f}x{defects}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--batches", default="1")
    row_arguments(parser)
    return parser.parse_args()


def main():
    options = parse()
    unknown = set(options.networks.split(",")) - set(zoo_networks.networks())
    if unknown:
        sys.exit(f"no such network: {', '.join(sorted(unknown))}")
    call = Call("quantized", options, lambda cpus: contenders.limits(options.limits, cpus))
    rows = [QuantizedRow(Quantized(name, form, batch), batch, cpus) for name in options.networks.split(",")
            for form in options.forms.split(",") for batch in numbers(options.batches) for cpus in teams(options)]
    facts = measured(rows, options, call, line)
    code = call.finish(facts, **next((row.versions() for row in rows if row.ready), {}))
    wrong = [f"{r['model']} {r['exporter']}" for r in facts
             if r.get("stage") == "trireme" or not r.get("agrees", True)]
    if wrong:
        print(f"failed or differ: {', '.join(dict.fromkeys(wrong))}")
    for r in facts:
        if "error" not in r and min(r["ratio_best_peer"][0], r["ratio_f32"][0]) < report.Quantized.LEAST:
            print(f"behind: {line(r)}")
    sys.exit(1 if wrong else code)


if __name__ == "__main__":
    main()
