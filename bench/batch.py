"""Batch jobs beside the model alone and other pipelines: ./dev bench batch [--tasks a,b] [--parts speed,flat].

speed: `trireme batch` from start to end (the model is opened in it), rows a second, over those of bench_batch: the same
model with rows in memory, neither reading nor writing. Peers with the same model in ONNX Runtime, timed without their
imports and without opening the model: PyArrow with a thread that reads ahead, and Ray Data with one actor. `texts`:
MiniLM over Parquet of 3 to 40 words; `pictures`: MobileNetV2 of the shared data (ResNet-18 of the zoo where that is
missing) over JPEG files in WebDataset shards; `prompts`: a Llama of 15 million weights (q8_0) continues prompts of 8 to
64 words by 32 tokens, beside llama.cpp with the same file, which takes in new prompts while others run. In turns, round
after round; ratios are medians of those inside a round. Without options a call has all tasks, peers and parts, the
latter first, and ends within ten minutes on two cores, counted from when the peers are installed and the input is
written: a third round is left out where it would end after --minutes, and the call says how many there were. --full:
2 million texts, 100,000 pictures, 50,000 prompts, however long that takes.
flat: a model of no work over two sizes of one synthetic file, in row groups and chunks of 4,096 rows: the largest
memory of each, seconds from the start to the first lease of a chunk, and from a restart of the larger one, killed at
90 %, to the first lease.
Ray and the others are installed under out/bench/batch on first use. What is written: bench/call.py.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import onnx
import pyarrow
import pyarrow.parquet
from onnx import TensorProto, helper, numpy_helper

import contenders
import language
import serve_models
from batch_report import Batch
from call import MINUTES, ROOT, Call, arguments
from encoder_onnx import write_encoder
from models import numbers

PEER, LANGUAGE_PEER = ROOT / "bench/batch_peer.py", ROOT / "bench/batch_language_peer.py"
HOME = ROOT / "out/bench/batch"
PARTS = ("speed", "flat")
ALONE_MS = 4000
WINDOW = 1024  # rows that the peers read and sort at a time
PEER_BATCH = 32
LONGEST = 256
SIDE = 256  # of a picture, before it is resized to what the model takes
FLAT_WIDTH, FLAT_ROWS = 16, 4096  # of a row; of row groups and chunks, which files of both sizes fill
PATIENCE_S = 900


def peers_python():
    """The interpreter that has the peers."""
    python, wanted = HOME / "venv/bin/python", (ROOT / "tools/requirements-batch-peers.txt").read_text(encoding="utf-8")
    done = HOME / "installed.txt"
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", ROOT / "tools/requirements-batch-peers.txt"],
                       check=True)
        done.write_text(wanted, encoding="utf-8")
    return python


def write_texts(path, rows, encoder):
    """Sentences of the tokenizer's own whole words."""
    words = [w for w in json.loads((encoder / "tokenizer.json").read_text())["model"]["vocab"] if w.isalpha()]
    draw = random.Random(5)
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 40))) for _ in range(rows)]
    pyarrow.parquet.write_table(pyarrow.table({"id": numpy.arange(rows), "text": texts}), path, row_group_size=4096)


PICTURES = """
import io, sys, tarfile
import numpy
from PIL import Image
folder, rows, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = numpy.random.default_rng(3)
for shard in range(0, rows, 1000):
    with tarfile.open(f"{folder}/{shard // 1000:04d}.tar", "w") as archive:
        for i in range(shard, min(rows, shard + 1000)):
            small = draw.integers(0, 256, (9, 9, 3), numpy.uint8)
            image = Image.fromarray(small).resize((side, side), Image.BICUBIC)
            noise = draw.integers(0, 24, (side, side, 3), numpy.uint8)
            file = io.BytesIO()
            Image.fromarray(numpy.asarray(image) // 2 + noise).save(file, "JPEG", quality=87)
            member = tarfile.TarInfo(f"{i:06d}.jpg")
            member.size = file.tell()
            file.seek(0)
            archive.addfile(member, file)
"""


class Texts:
    name, model, result = "texts", "minilm", "sentence_embedding"

    def __init__(self, python, rows):
        encoder = pathlib.Path(os.environ["TRIREME_ENCODER"])
        self.rows, self.input, model = rows, HOME / f"texts-{rows}.parquet", HOME / "minilm.onnx"
        if not self.input.exists():
            write_texts(self.input, rows, encoder)
        if not model.exists():
            write_encoder(encoder, model)
        self.job = {"model": str(encoder), "max_length": LONGEST, "input": {"files": [str(self.input)]}}
        self.settings = {"inputs": [str(self.input)], "model": str(model), "tokenizer": str(encoder / "tokenizer.json"),
                         "longest": LONGEST, "result": self.result}


class Pictures:
    name = "pictures"

    def __init__(self, python, rows):
        folder = HOME / f"pictures-{rows}"
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            subprocess.run([python, "-c", PICTURES, part, str(rows), str(SIDE)], check=True)
            part.rename(folder)
        network = serve_models.network(HOME)
        shards = sorted(map(str, folder.glob("*.tar")))
        self.rows, self.model = rows, network.name
        (name, value), = network.inputs.items()
        self.job = {"model": str(network.path), "task": "classify", "image_values": "imagenet",
                    "input": {"files": shards, "columns": [f"{name}=image"]}}
        self.settings = {"inputs": shards, "model": str(network.path), "side": value.shape[-1]}


class Prompts:
    name, model = "prompts", "llama15m-q8_0"
    SHAPE = "vocabulary=32000,width=288,layers=6,heads=6,kv_heads=6,inner=768,positions=1024"
    TOKENS, SEQUENCES = 32, 64

    def __init__(self, _, rows):
        self.python, self.rows, self.input = language.peer_python(), rows, HOME / f"prompts-{rows}.jsonl"
        model = HOME / "llama15m-q8_0.gguf"
        if not self.input.exists():
            draw = random.Random(9)
            with open(self.input, "w", encoding="utf-8") as file:
                for row in range(rows):
                    words = " ".join(f"w{draw.randrange(31000)}" for _ in range(draw.randint(8, 64)))
                    file.write(json.dumps({"id": row, "prompt": words}) + "\n")
        if not model.exists():
            part = model.with_suffix(".part")
            subprocess.run([self.python, LANGUAGE_PEER, "write", part, self.SHAPE], check=True)
            part.rename(model)
        self.job = {"model": str(model), "task": "generate", "max_tokens": self.TOKENS,
                    "input": {"files": [str(self.input)]}}
        self.settings = {"input": str(self.input), "model": str(model), "sequences": self.SEQUENCES,
                         "tokens": self.TOKENS}
        self.flash = None  # the mode of llama.cpp's attention that is faster, once both ran

    def run_peer(self, settings, folder):
        modes = language.MODES.values() if self.flash is None else (self.flash,)
        rates = {flash: self.run_mode(settings | {"flash": flash}, folder) for flash in modes}
        self.flash = max(rates, key=rates.get)
        return {"rows_per_s": rates[self.flash]}

    def run_mode(self, settings, folder):
        words = json.dumps(settings | {"output": str(folder / "found.jsonl")})
        done = subprocess.run([self.python, LANGUAGE_PEER, "run", words], capture_output=True, text=True,
                              timeout=PATIENCE_S, check=True)
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return told["rows"] / told["seconds"]


def write_job(path, job, output, **more):
    path.write_text(json.dumps(job | {"output": {"directory": str(output)}} | more), encoding="utf-8")
    return path


def run_job(job, folder, threads):
    """Rows a second of a whole job, and what its status says."""
    output = folder / "out"
    path = write_job(folder / "job.yaml", job, output, threads=threads)
    begin = time.monotonic()
    subprocess.run([os.environ["TRIREME"], "batch", path], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - begin
    told = json.loads(subprocess.run([os.environ["TRIREME"], "batch", "status", path, "--json"], check=True,
                                     capture_output=True, text=True).stdout)
    if told["rows_done"] != told["rows"] or told["errors"]:
        raise RuntimeError(f"{told['rows_done']} of {told['rows']} rows, {told['errors']} errors")
    return {"rows_per_s": told["rows_done"] / seconds, "busy": told["busy"], "slowest": told["slowest"]}


def run_peer(python, how, task, settings, output):
    output = output / ("found" if how == "ray" else "found.parquet")
    words = json.dumps(settings | {"output": str(output), "batch": PEER_BATCH, "window": WINDOW})
    done = subprocess.run([python, PEER, how, task, words], capture_output=True, text=True, timeout=PATIENCE_S,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{how}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return {"rows_per_s": told["rows"] / told["seconds"]}


def tasks_of(options, python):
    """The tasks, once their models and their input are written."""
    return [{"texts": Texts, "pictures": Pictures, "prompts": Prompts}[name](python, getattr(options, name))
            for name in options.tasks.split(",")]


def speed(call, options, tasks, python, cores):
    rounds = {task.name: [] for task in tasks}
    for turn in call.rounds(options.rounds, options.minutes):
        for task in tasks:
            call.probe(cores)
            with tempfile.TemporaryDirectory(dir=HOME) as scratch:
                folder = pathlib.Path(scratch)
                path = write_job(folder / "alone.yaml", task.job, folder / "none", threads=len(cores))
                bench = pathlib.Path(os.environ["TRIREME"]).parent / "bench_batch"
                alone = contenders.Contender("alone", [bench, path, min(task.rows, 4 * WINDOW)], cores)
                alone.run(ALONE_MS / 3)
                one = {"alone": alone.run(ALONE_MS)}
                alone.close()
                one["ours"] = run_job(task.job, folder, len(cores))
                settings = task.settings | {"threads": len(cores)}
                if task.name == "prompts":
                    one["llama.cpp"] = task.run_peer(settings, folder)
                for how in options.peers.split(",") if task.name != "prompts" else ():
                    one[how] = run_peer(python, how, task.name, settings, folder)
            rounds[task.name].append(one)
            rates = "  ".join(f"{name} {found['rows_per_s']:.0f}/s" for name, found in one.items())
            print(f"round {turn + 1}  {task.name}  {rates}", flush=True)
    return [row(task, rounds[task.name]) for task in tasks]


def row(task, rounds):
    def triple(values):
        return [round(f(values), 3) for f in (statistics.median, min, max)]
    who = list(rounds[0])
    return {"task": task.name, "model": task.model, "rows": task.rows, "rounds": len(rounds),
            "busy": triple([r["ours"]["busy"] for r in rounds]),
            "slowest": rounds[-1]["ours"]["slowest"],
            "rows_per_s": {name: triple([r[name]["rows_per_s"] for r in rounds]) for name in who},
            "times": {name: triple([r["ours"]["rows_per_s"] / r[name]["rows_per_s"] for r in rounds])
                      for name in who if name != "ours"}}


def flat_file(rows):
    """Parquet of random vectors, written by the first call."""
    path = HOME / f"flat-{FLAT_ROWS}-{rows}.parquet"
    if not path.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write_flat(part, rows)
        part.rename(path)
    return path


def write_flat(path, rows):
    """In parts."""
    schema = pyarrow.schema([("x", pyarrow.list_(pyarrow.float32(), FLAT_WIDTH))])
    draw = numpy.random.default_rng(1)
    values = draw.standard_normal(FLAT_ROWS * FLAT_WIDTH).astype(numpy.float32)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, rows, FLAT_ROWS):
            count = min(rows - begin, FLAT_ROWS)
            array = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values[:count * FLAT_WIDTH]), FLAT_WIDTH)
            writer.write_table(pyarrow.table([array], schema=schema))


def write_linear(path):
    weights = numpy.random.default_rng(2).standard_normal((FLAT_WIDTH, 4)).astype(numpy.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", FLAT_WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "linear", [x], [y],
                              [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def start(path):
    command = [os.environ["TRIREME"], "batch", path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def first_change(process, journal, size):
    """Seconds until the journal is longer than it was."""
    begin = time.monotonic()
    while not journal.exists() or journal.stat().st_size <= size:
        if process.poll() is not None:
            raise RuntimeError(f"the job ended with {process.returncode}")
        time.sleep(0.002)
    return time.monotonic() - begin


def peak_of(process):
    """The largest resident set of a process that is waited for, in bytes. The kernel counts the one before exec, this
    interpreter with its libraries, into what wait4() says: so the process's own figure is read while it runs."""
    peak = 0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))])
        time.sleep(0.01)
    if process.wait() != 0:
        raise RuntimeError(f"the job ended with {process.returncode}")
    return peak * 1024


def flat(options):
    model = HOME / "linear.onnx"
    write_linear(model)
    found = {"rows": numbers(options.flat), "peak_bytes": [], "first_s": [], "rows_per_s": []}
    with tempfile.TemporaryDirectory(dir=HOME) as scratch:
        for rows in found["rows"]:
            data = flat_file(rows)
            output = pathlib.Path(scratch) / f"out-{rows}"
            path = write_job(pathlib.Path(scratch) / f"job-{rows}.yaml",
                             {"model": str(model), "chunk_rows": FLAT_ROWS, "input": {"files": [str(data)]}},
                             output)
            begin = time.monotonic()
            process = start(path)
            found["first_s"].append(round(first_change(process, output / "_job/journal", 64), 3))
            found["peak_bytes"].append(peak_of(process))
            found["rows_per_s"].append(round(rows / (time.monotonic() - begin)))
        found["restart_s"] = round(restart(path, output), 3)
    return found


def restart(path, output):
    """Kills a job at 90 % and starts it again: seconds until it took its next chunk."""
    shutil.rmtree(output)
    process = start(path)
    command = [os.environ["TRIREME"], "batch", "status", path, "--json"]
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = json.loads(done.stdout) if done.returncode == 0 else {"rows_done": 0, "rows": 1}
        if told["rows_done"] >= 0.9 * told["rows"]:
            break
        if process.poll() is not None:
            raise RuntimeError("the job ended before it could be killed")
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    journal = output / "_job/journal"
    process = start(path)
    seconds = first_change(process, journal, journal.stat().st_size)
    peak_of(process)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="texts,pictures,prompts")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peers", default="arrow,ray")
    parser.add_argument("--texts", type=int, default=6_000, help="rows")
    parser.add_argument("--pictures", type=int, default=1_200, help="rows")
    parser.add_argument("--prompts", type=int, default=400, help="rows")
    parser.add_argument("--full", action="store_true", help="the sizes of the goals, which take hours")
    parser.add_argument("--flat", default="10000,10000000", help="rows of the two sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no round begins that would end later")
    arguments(parser)
    options = parser.parse_args()
    if options.full:
        options.texts, options.pictures, options.prompts = 2_000_000, 100_000, 50_000
        options.minutes = float("inf")
    cores = sorted(os.sched_getaffinity(0))
    parts = options.parts.split(",")
    python = peers_python() if "speed" in parts else None
    tasks = tasks_of(options, python) if "speed" in parts else []
    for rows in numbers(options.flat) if "flat" in parts else ():
        flat_file(rows)
    call = Call("batch", options, lambda cpus: contenders.limits(options.limits, cpus))
    facts = {"flat": Batch.flat_line(flat(options))} if "flat" in parts else {}
    rows = speed(call, options, tasks, python, cores) if tasks else []
    for one in rows:
        print(Batch.line(one), flush=True)
    if facts:
        print("flat: " + facts["flat"], flush=True)
    sys.exit(call.finish(rows, **facts))


if __name__ == "__main__":
    main()
