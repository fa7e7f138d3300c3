"""Language models beside llama.cpp: ./dev bench language [--formats q4_0,q4_k,q8_0,bf16] [--batches 1,16].

One file of a shape with random weights in one format for both, the same threads. Round after round each opens the file,
reads random prompts of its own, decodes, and ends, in turns that begin with the other one each round; the first prompt
of a process is not counted. The first round runs llama.cpp with flash attention and without, and the mode that answers
sooner counts. Reading the prompt and decoding are timed apart. Rows are medians of the ratio inside a round.
A decoding step reads every weight but the embedding once: one that would mean a higher rate than the limit of the
machine's memory is refused. What is written: bench/call.py.

llama.cpp is the source package of llama-cpp-python (tools/requirements-language.txt), compiled for this machine in a
virtual environment under out/bench/language, by the first call; the file it opens is written there, too.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import contenders
from call import ROOT, Call, arguments
from models import numbers
from report import Language

PEER = ROOT / "bench/language_peer.py"
HOME = ROOT / "out/bench/language"
SHAPE = "vocabulary=32000,width=2048,layers=22,heads=32,kv_heads=4,inner=5632,positions=2048"
NATIVE = "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF"
BITS = {"q4_0": 4.5, "q4_k": 4.5, "q6_k": 6.5625, "q8_0": 8.5, "bf16": 16}
MODES = {"plain": 0, "flash": 1}  # of llama.cpp's attention
SLACK = 1.05  # of the memory's limit: probes and rows are not of the same moment


def peer_python():
    """The interpreter that has llama.cpp; compiles it if need be."""
    python = HOME / "venv/bin/python"
    wanted = (ROOT / "tools/requirements-language.txt").read_text(encoding="utf-8")
    done = HOME / "installed.txt"
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python", "-r",
                        ROOT / "tools/requirements-language.txt"], check=True,
                       env=os.environ | {"CMAKE_ARGS": NATIVE, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())})
        done.write_text(wanted, encoding="utf-8")
    return python


def model_file(python, form, shape, home=HOME):
    """The GGUF file of a shape in a format."""
    path = home / f"{form}-{shape.replace(',', '-').replace('=', '')}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        subprocess.run([python, PEER, "write", part, form, shape], check=True)
        part.rename(path)
    return path


def told(command):
    out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def rows_of(form):
    """llama.cpp rounds the rows that meet bf16 weights to bf16. Ours may too, where the processor gains by it."""
    facts = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    pays = form == "bf16" and "AuthenticAMD" in facts and "avx512_bf16" in facts
    return ["--weight-rows", "bf16"] if pays else []


def tokens_of(batch, options):
    """Tokens of a sequence's prompt and of its answer, of so many sequences: together as many as one has, in at least
    32 and 16 each."""
    if batch == 1:
        return options.prompt, options.new
    return max(options.prompt // batch, 32), max(options.new // batch, 16)


def ours(path, form, batch, options):
    prompt, new = tokens_of(batch, options)
    bench = f"prompt={prompt},new={new},batch={batch}"
    # The first shape warms up: `generate --bench` also does so for each. Keys and values in f16, as llama.cpp has them.
    return told([os.environ["TRIREME"], "generate", path, *rows_of(form), "--threads", options.threads,
                 "--bench", bench, "--chunk", "512", "--cache-type", "f16", "--json"])


class Peer:
    """llama.cpp on one file, in the mode of attention with which it answers sooner."""

    def __init__(self, python, path, batch, options):
        self.prompt, self.new = tokens_of(batch, options)
        self.command = [python, PEER, "run", path, options.threads, self.prompt, self.new, batch]
        self.mode = None

    def seconds(self, rates):
        return self.prompt / rates["prefill_tokens_s"] + self.new / rates["decode_tokens_s"]

    def run(self, turn):
        tried = {mode: told([*self.command, turn, MODES[mode]]) for mode in ([self.mode] if self.mode else MODES)}
        self.mode = min(tried, key=lambda mode: self.seconds(tried[mode]))
        return tried[self.mode]


def weight_bytes(form, shape):
    """Of the matrices that a step reads."""
    s = {name: int(value) for name, value in (pair.split("=") for pair in shape.split(","))}
    kv = s["width"] // s["heads"] * s["kv_heads"]
    layer = s["width"] * (2 * s["width"] + 2 * kv + 3 * s["inner"])
    return (s["layers"] * layer + s["vocabulary"] * s["width"]) * BITS[form] / 8


def row(key, rounds, most_gbs, size):
    """Of rounds of (ours, peer), each {prefill_tokens_s, decode_tokens_s}."""
    def triple(values):
        return [round(f(values), 3) for f in (statistics.median, min, max)]
    form, batch = key
    one = {"format": form, "batch": batch}
    for what in ("prefill", "decode"):
        rates = [(a[f"{what}_tokens_s"], b[f"{what}_tokens_s"]) for a, b in rounds]
        one[what] = {"ours": triple([a for a, _ in rates]), "peer": triple([b for _, b in rates]),
                     "ratio": triple([a / b for a, b in rates])}
    for who in ("ours", "peer"):
        gbs = one["decode"][who][0] / batch * size / 1e9
        if gbs > SLACK * most_gbs:
            raise ValueError(f"{form}, {batch} sequences: {who} would read {gbs:.1f} GB/s, the limit is {most_gbs:.1f}")
        one["decode"][f"{who}_of_read"] = round(gbs / most_gbs, 3)
    return one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="q4_0,q4_k,q8_0,bf16")
    parser.add_argument("--shape", default=SHAPE, help="of both: options of zoo:llama")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments(parser)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:options.threads]
    python = peer_python()
    call = Call("language", options, lambda cpus: contenders.limits(options.limits, cpus))
    keys = [(form, batch) for form in options.formats.split(",") for batch in numbers(options.batches)]
    files = {form: model_file(python, form, options.shape) for form, _ in keys}
    peers = {(form, batch): Peer(python, files[form], batch, options) for form, batch in keys}
    found, probes = {key: [] for key in keys}, []
    for turn in range(options.rounds):
        for form, batch in keys:
            probes.append(call.probe(cores)["read_gbs"])
            both = [lambda: ours(files[form], form, batch, options),
                    lambda: peers[form, batch].run(turn)]
            first = turn % 2
            results = {first: both[first](), 1 - first: both[1 - first]()}
            found[form, batch].append((results[0], results[1]))
    rows = [row(key, rounds, max(probes), weight_bytes(key[0], options.shape)) for key, rounds in found.items()]
    for one in rows:
        one["prompt"], one["new"] = tokens_of(one["batch"], options)
        one["peer_mode"] = peers[one["format"], one["batch"]].mode
        print(Language.line(one), flush=True)
    sys.exit(call.finish(rows, shape=options.shape))


if __name__ == "__main__":
    main()
