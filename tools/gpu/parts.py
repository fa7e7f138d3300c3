# What is checked and measured, in order of importance: a machine with a GPU may be gone before the end.
import importlib.util
import json
import pathlib
import struct
import sys
import time

import numpy

from gpu import by_kernel, device_tests, peers, serving


def toolkit_folders():
    """lib folders of NVIDIA's Python packages."""
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found else []
    return [folder for root in roots for folder in sorted(pathlib.Path(root).glob("*/lib"))]


VERSIONS = """
import ctypes, json
versions = {}
for name, call in (("libcublasLt.so.13", "cublasLtGetVersion"), ("libcudnn.so.9", "cudnnGetVersion")):
    try:
        function = getattr(ctypes.CDLL(name), call)
        function.restype = ctypes.c_size_t
        versions[name] = function()
    except (OSError, AttributeError) as error:
        versions[name] = str(error)
for name, call, count in (("libnvrtc.so.13", "nvrtcVersion", 2), ("libnccl.so.2", "ncclGetVersion", 1),
                          ("libcuda.so.1", "cuDriverGetVersion", 1)):
    try:
        numbers = [ctypes.c_int() for _ in range(count)]
        getattr(ctypes.CDLL(name), call)(*map(ctypes.byref, numbers))
        versions[name] = ".".join(str(n.value) for n in numbers)
    except (OSError, AttributeError) as error:
        versions[name] = str(error)
print(json.dumps(versions))
"""


def libraries(check):
    """Versions of what our programs will find, in their own search path."""
    done = check.run([sys.executable, "-c", VERSIONS], 30)
    check.add("libraries", **(json.loads(done.lines[-1]) if done.ok() and done.lines else {"why": done.why()}))


def measured(check, part, only):
    """Lines of `trireme devices --measure`, kept as they come; None where it ended early."""
    size = ["--scale", "0.001", "--seconds", "0.01"] if check.quick else ["--seconds", "0.1"]
    rows = []

    def take(text):
        row = json.loads(text)
        rows.append(row)
        if ("op" in row) == (part == "speed"):
            check.add(part, **row)

    command = [check.program("trireme"), "devices", "--measure", check.device, "--json", "--only", only, *size]
    done = check.run(command, 100, take)
    if not done.ok():
        check.verdict(part, "failed", only=only, why=done.why())
    return rows if done.ok() else None


def ceilings(check):
    """What a copy and large products reach here."""
    if measured(check, "ceilings", "no operator"):
        check.counts["passed"] += 1


# A kernel that faults takes the device away from its process; each name is then asked for by itself.
OPERATORS = ["add", "gelu", "softmax", "layer_norm", "rms_norm", "transpose", "reduce_sum", "gather", "cross_entropy",
             "rotary_embedding", "linear", "matmul", "attention_qkv", "conv_nhwc", "adam_update"]


def speed(check):
    """Operators in percent of these ceilings."""
    rows = measured(check, "speed", "")
    lost = rows is None or any("CUDA: " in row.get("refused", "") for row in rows)
    if not lost:
        return check.verdict("speed", "passed")
    for name in OPERATORS:
        if check.left() > 10:
            measured(check, "speed", name)


def pattern_images(folder):
    """Two noisy patterns as an IDX pair: a data set that every machine has."""
    random = numpy.random.default_rng(3)
    labels = random.integers(0, 4, 512)
    patterns, noise = random.integers(0, 256, (4, 12, 12)), random.integers(0, 128, (512, 12, 12))
    images = numpy.clip(patterns[labels] * 0.5 + noise, 0, 255)
    folder.mkdir()
    for name, array in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / name).write_bytes(head + array.astype(numpy.uint8).tobytes())


def configurations(check):
    """Name and configuration of each run; JSON is YAML."""
    pattern_images(check.scratch / "images")
    text = "".join(chr(97 + (7 * i + i * i // 11) % 26) for i in range(20000))
    (check.scratch / "text.txt").write_text(text)
    yield "resnet", {"model": {"source": "zoo:resnet14",
                               "config": {"width": 8, "channels": 1, "size": 12, "classes": 4}},
                     "data": {"path": str(check.scratch / "images")}, "batch": {"global": 16},
                     "optimizer": {"kind": "sgd"}, "schedule": {"lr": 0.05}}
    yield "gpt", {"model": {"source": "zoo:gpt2",
                            "config": {"width": 64, "layers": 2, "heads": 4, "positions": 32, "dropout": 0,
                                       "vocabulary": 26}},
                  "data": {"path": str(check.scratch / "text.txt"), "format": "characters", "context": 32},
                  "batch": {"global": 8}, "optimizer": {"kind": "adamw"}, "schedule": {"lr": 1e-3}}


def losses_of(check, name, config, device, steps):
    """Loss of each step of a training; None with a verdict where it fails."""
    folder = check.scratch / f"{name}-{device.replace(':', '')}"
    path = check.scratch / f"{folder.name}.yaml"
    run = {"steps": steps, "name": folder.name, "directory": str(folder)}
    path.write_text(json.dumps({"run": run, **config}))
    done = check.run([check.program("trireme"), "train", path, "--run.device", device, "--quiet"], 60)
    if not done.ok():
        check.verdict("trajectory", "failed", network=name, device=device, why=done.why())
        return None
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def trajectories(check):
    """A few steps of training on the device follow the CPU's."""
    steps = 3 if check.quick else 10
    for name, config in configurations(check):
        theirs = losses_of(check, name, config, "cpu", steps)
        ours = losses_of(check, name, config, check.device, steps) if theirs else None
        if ours is None:
            continue
        worst = max((abs(a - b) / abs(b) for a, b in zip(ours, theirs)), default=1)
        good = len(ours) == len(theirs) == steps and worst < 1e-3
        check.verdict("trajectory", "passed" if good else "failed", network=name, largest_difference=worst,
                      ours=ours[:2] + ours[-1:], cpu=theirs[:2] + theirs[-1:])


TRAINING = [("gpt_1.3b_8", ["eager", "compiled"]), ("gpt_1.3b", ["eager", "compiled"]),
            ("resnet50_256", ["eager", "compiled_channels_last"]), ("gpt2_1024", ["eager", "compiled"])]
TINY = [("gpt_tiny", []), ("resnet_tiny", [])]


def training(check):
    """Whole steps of ours in bf16, and where their time goes."""
    precision, slice_ms = ("f32", 50) if check.quick else ("bf16", 2500)
    for network, _ in TINY if check.quick else TRAINING:
        command = [check.program("bench_train"), network, 0, check.device, precision]
        done = check.run_recorded("training", command, 75, text=f"{slice_ms}\nprofile\n")
        rows = [json.loads(line) for line in done.lines if line.startswith("{")]
        row = {key: value for found in rows for key, value in found.items()}
        if "median_us" in row:
            row["tflop_s"] = row["gflop"] / row["median_us"] * 1e3
        if not done.ok():
            row["why"] = done.why()
        profile = [line.strip() for line in done.lines if " % " in line]
        if profile and "median_us" in row:  # what a replayed step takes beside its kernels, each timed by itself
            row["kernels_us"] = sum(float(line.split()[2]) for line in profile) * 1e3
            row["beside_kernels_percent"] = 100 * (1 - row["kernels_us"] / row["median_us"])
        check.verdict("training", "passed" if done.ok() and "median_us" in row else "failed", network=network,
                      contender="trireme", precision=precision, **row, profile=profile[:40])


def decoding_to_profile(check):
    """A prompt and some steps of two layers of that Llama, for one sequence and for many."""
    if check.quick:
        return [("llama of 2 layers, batch 3", "f32", generate_words(check, LLAMA_TINY, "f32", [(8, 3, 3)], 96, 3))]
    model = LLAMA_8B.replace("layers=32", "layers=2").replace("vocabulary=128256", "vocabulary=32000")
    return [(f"llama of 2 layers, batch {batch} behind {prompt}", "bf16",
             generate_words(check, model, "bf16", [(prompt, 12, batch)], 2304, batch))
            for prompt, batch in ((504, 1), (2040, 8), (504, 64))]


def profile(check):
    """Steps of decoding and of training by kernel, where ncu is there."""
    networks = [network for network, _ in (TINY if check.quick else TRAINING)]
    by_kernel.profile(check, [(name, "f32" if check.quick else "bf16") for name in networks if name != "gpt_1.3b"],
                      decoding_to_profile(check))


def beside_peers(check):
    """The same work by PyTorch."""
    peers.peers(check, TRAINING)


def shapes_of_llama(quick):
    """(longest sequence, most sequences, [(prompt, new tokens, batch)]) of each process."""
    if quick:
        return [(96, 4, [(24, 4, 1), (8, 3, 3)]), (64, 1, [(56, 3, 1)])]
    return [(2304, 64, [(504, 64, 1), (2048, 64, 1), (2048, 64, 8), (512, 64, 64)]), (8192, 1, [(8064, 64, 1)])]


LLAMA = "zoo:llama:vocabulary=32000,positions=2048,width=4096,layers=32,heads=32,inner=11008,weights=repeated"
INFERENCE = [("zoo:resnet50", [], [1, 32]), ("zoo:bert", ["--dim", "seq=128"], [1, 32]),
             (LLAMA, ["--dim", "seq=2048"], [1])]


def inference(check):
    """Whole networks on the device: ResNet-50, BERT-base, the prefill of a Llama of 7 billion parameters."""
    networks = [("zoo:resnet14:width=8", [], [2])] if check.quick else INFERENCE
    precision, repeat = ("f32", 3) if check.quick else ("bf16", 30)
    for source, sizes, batches in networks:
        for batch in batches:
            command = [check.program("trireme"), "run", source, "--device", check.device, "--batch", batch, "--repeat",
                       repeat, "--precision", precision, "--json", *sizes]
            done = check.run_recorded("inference", command, 60)
            fields = json.loads(done.lines[-1]) if done.ok() else {"why": done.why()}
            check.verdict("inference", "passed" if done.ok() else "failed", network=source, batch=batch, **fields)
    if not check.quick:  # what 8-bit products are worth: BERT-base again
        command = [check.program("trireme"), "run", "zoo:bert", "--device", check.device, "--batch", 32, "--repeat",
                   repeat, "--precision", "fp8", "--json", "--dim", "seq=128"]
        done = check.run_recorded("inference", command, 60)
        fields = json.loads(done.lines[-1]) if done.ok() else {"why": done.why()}
        check.verdict("inference", "passed" if done.ok() else "failed", network="zoo:bert fp8", batch=32, **fields)


LLAMA_8B = ("zoo:llama:vocabulary=128256,positions=8192,width=4096,layers=32,heads=32,kv_heads=8,inner=14336,"
            "theta=500000,is_tied=false,weights=repeated")
LLAMA_TINY = "zoo:llama:vocabulary=96,positions=96,width=32,layers=2,heads=4,kv_heads=2,inner=48,weights=repeated"


def llama(check):
    """Prompts and decoding of a Llama of 8 billion parameters with random weights, batches of 1 to 64, behind up to
    8,192 tokens. Each shape runs twice with prompts of its own; the second is what is told."""
    for longest, most, shapes in shapes_of_llama(check.quick):
        decode(check, longest, most, list(shapes))


def generate_words(check, model, precision, shapes, longest, most):
    """Words of `trireme generate` that measure (prompt, new tokens, batch) one after the other."""
    words = [model, "--device", check.device, "--precision", precision, "--cache-type", precision, "--chunk",
             32 if check.quick else 2048, "--json", "--max-length", longest, "--max-sequences", most]
    for prompt, fresh, batch in shapes:
        words += ["--bench", f"prompt={prompt},new={fresh},batch={batch}"]
    return words


def decode(check, longest, most, shapes):
    """The shapes in one process; what it stops at fails, and the others run in another one."""
    precision = "f32" if check.quick else "bf16"
    while shapes:
        if check.left() < 10:
            return check.verdict("llama", "skipped", shape=str(shapes[0]), why="the budget is spent")
        model = LLAMA_TINY if check.quick else LLAMA_8B
        command = [check.program("trireme"), "generate",
                   *generate_words(check, model, precision, shapes, longest, most)]
        begin, count = time.monotonic(), len(shapes)

        def take(text):
            row = json.loads(text)
            check.verdict("llama", "passed", precision=precision, **row)
            if (shape := (row["prompt"], row["new"], row["batch"])) in shapes:
                shapes.remove(shape)

        done = check.run_recorded("llama", command, 60 if check.quick else 110, on_line=take)
        check.add("llama", process_s=round(time.monotonic() - begin, 1))
        if "host_fallback" in done.errors:
            check.verdict("llama", "failed", why=done.errors[-500:])
        if shapes:  # the first of the rest is what it stopped at; the others may run all the same
            check.verdict("llama", "failed", shape=str(shapes.pop(0)), why=done.why())
            if len(shapes) == count - 1 and done.timed_out:
                return None
    return None


def float8(check):
    """The prefill of a quarter of that Llama with products of 8-bit floats, beside 16 bits."""
    model = LLAMA_TINY if check.quick else LLAMA_8B.replace("layers=32", "layers=8")
    shape = "prompt=32,new=2,batch=1" if check.quick else "prompt=2048,new=32,batch=1"
    for precision in ("bf16", "fp8"):
        command = [check.program("trireme"), "generate", model, "--device", check.device, "--precision", precision,
                   "--cache-type", "bf16", "--chunk", 2048, "--json", "--max-length", 2304, "--max-sequences", 1,
                   "--bench", shape]
        done = check.run_recorded("float8", command, 60)
        row = json.loads(done.lines[-1]) if done.ok() and done.lines else {"why": done.why()}
        check.verdict("float8", "passed" if done.ok() else "failed", precision=precision, **row)


# Name, what runs, and the seconds it may take; what a part leaves over is the later ones'.
PARTS = [("libraries", libraries, 3), ("ceilings", ceilings, 8), ("tests", device_tests.tests, 70),
         ("trajectory", trajectories, 12), ("llama", llama, 60), ("training", training, 70),
         ("profile", profile, 60), ("speed", speed, 20), ("serve", serving.serve, 20),
         ("load", serving.under_load, 20), ("inference", inference, 30), ("float8", float8, 18),
         ("peers", beside_peers, 90), ("sessions", device_tests.sessions, 40), ("sanitize", device_tests.sanitize, 15)]
MOST_SECONDS = 540  # of all parts
