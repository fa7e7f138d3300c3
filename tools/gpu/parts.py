# What is checked and measured, in order of importance: a machine with a GPU may be gone before the end.
import importlib.util
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import time
import urllib.request

import numpy



def toolkit_folders():
    """lib folders of NVIDIA's Python packages."""
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found else []
    return [folder for root in roots for folder in sorted(pathlib.Path(root).glob("*/lib"))]


def has_torch():
    return importlib.util.find_spec("torch") is not None


def tests(check):
    """Every test of device code, with the kernels compiled for this GPU."""
    for name, only in (("test_backend_cuda", "*"), ("test_ops", "*Cuda*"), ("test_runtime", "*Cuda*:*Device*"),
                       ("test_engine", "*Cuda*:*Device*"), ("test_comm", "*Nccl*")):
        done = check.run([check.program(name), f"--gtest_filter={only}"], 120)
        counts = {word: int((re.search(rf"\[  {mark}  \] (\d+) test", done.stdout) or [0, 0])[1])
                  for word, mark in (("passed", "PASSED"), ("failed", "FAILED"), ("skipped", "SKIPPED"))}
        for word, count in counts.items():
            check.counts[word] += count
        if done.returncode != 0 and not counts["failed"]:
            check.counts["failed"] += 1
        check.add("tests", program=name, code=done.returncode, **counts,
                  tail="" if done.returncode == 0 else (done.stdout + done.stderr)[-3000:])


def speed(check):
    """Copy and products first, then operators in percent of these."""
    size = ["--scale", "0.001", "--seconds", "0.01"] if check.quick else []
    done = check.run([check.program("trireme"), "devices", "--measure", check.device, "--json", *size], 150)
    for line in done.stdout.splitlines():
        check.add("speed", **json.loads(line))
    ok = done.returncode == 0 and done.stdout
    check.verdict("speed", "passed" if ok else "failed", why=done.stderr[-2000:])


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


def trajectories(check):
    """A few steps of training on the device follow the CPU's."""
    steps = 3 if check.quick else 10
    for name, config in configurations(check):
        losses = {}
        for device in ("cpu", check.device):
            folder = check.scratch / f"{name}-{device.replace(':', '')}"
            path = check.scratch / f"{folder.name}.yaml"
            run = {"steps": steps, "name": folder.name, "directory": str(folder)}
            path.write_text(json.dumps({"run": run, **config}))
            done = check.run([check.program("trireme"), "train", path, "--run.device", device, "--quiet"], 120)
            if done.returncode != 0:
                check.verdict("trajectory", "failed", network=name, device=device, why=done.stderr[-2000:])
                break
            events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
            losses[device] = [event["loss"] for event in events if event["event"] == "step"]
        if len(losses) < 2:
            continue
        ours, theirs = losses[check.device], losses["cpu"]
        worst = max((abs(a - b) / abs(b) for a, b in zip(ours, theirs)), default=1)
        good = len(ours) == len(theirs) == steps and worst < 1e-3
        check.verdict("trajectory", "passed" if good else "failed", network=name, largest_difference=worst,
                      first=ours[:1], last=ours[-1:])


def wait_ready(url, limit_s):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=2) as answer:
                if answer.status == 200:
                    return True
        except OSError:
            time.sleep(0.2)
    return False


def ask(url, x):
    with urllib.request.urlopen(f"{url}/v2/models/net", timeout=10) as answer:
        name = json.load(answer)["inputs"][0]["name"]
    body = {"inputs": [{"name": name, "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
    request = urllib.request.Request(f"{url}/v2/models/net/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return numpy.array(json.load(answer)["outputs"][0]["data"])


def serve(check):
    """A served model answers on the device as on the CPU."""
    model = check.scratch / "models/net/1/model.onnx"
    model.parent.mkdir(parents=True)
    size = 32 if check.quick else 224
    source = "zoo:resnet14:size=32,channels=3,width=8" if check.quick else "zoo:resnet18"
    made = check.run([check.program("trireme"), "export", source, model], 60)
    if made.returncode != 0:
        return check.verdict("serve", "failed", why=made.stderr[-2000:])
    x = numpy.random.default_rng(1).standard_normal((2, 3, size, size)).astype(numpy.float32)
    answers = []
    for port, device in ((8917, "cpu"), (8918, check.device)):
        command = [check.program("trireme"), "serve", "--model-repository", check.scratch / "models",
                   "--http-port", port, "--grpc-port", -1, "--device", device, "--max-batch", 4]
        server = subprocess.Popen([str(word) for word in command], env=check.env, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
        try:
            if not wait_ready(f"http://127.0.0.1:{port}", min(90, check.left())):
                server.terminate()
                return check.verdict("serve", "failed", device=device, why=server.communicate()[1][-2000:])
            answers.append(ask(f"http://127.0.0.1:{port}", x))
        finally:
            server.terminate()
            server.communicate(timeout=30)
    worst = float(numpy.abs(answers[0] - answers[1]).max() / numpy.abs(answers[0]).max())
    check.verdict("serve", "passed" if worst < 2e-3 else "failed", largest_difference=worst)


def converse(command, budget_ms, check, limit_s):
    """A contender's first line and its answer to one slice of time."""
    done = subprocess.run([str(word) for word in command], input=f"{budget_ms}\n", capture_output=True, text=True,
                          env=check.env, timeout=max(1.0, min(limit_s, check.left())))
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) < 2:
        return {"why": done.stderr[-1500:]}
    return {**json.loads(lines[0]), **json.loads(lines[1])}


TRAINING = [("resnet50_256", ["eager", "compiled_channels_last"]), ("gpt2_1024", ["eager", "compiled"]),
            ("gpt_1.3b", ["eager", "compiled"])]


def training(check):
    """Whole steps in bf16 beside PyTorch's, eager and compiled."""
    networks = [("resnet_tiny", []), ("gpt_tiny", [])] if check.quick else TRAINING
    slice_ms = 50 if check.quick else 3000
    for network, modes in networks:
        precision = "f32" if check.quick else "bf16"
        row = converse([check.program("bench_train"), network, 0, check.device, precision], slice_ms, check, 120)
        outcome = "passed" if "median_us" in row else "failed"
        if outcome == "passed":
            row["tflop_s"] = row["gflop"] / row["median_us"] * 1e3
        check.verdict("training", outcome, network=network, contender="trireme", **row)
        for mode in modes if has_torch() else []:
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:8]))
            peer = [sys.executable, check.root / "bench/train_peer.py", network, mode, 8, cores, "cuda", precision]
            check.add("training", network=network, contender=f"pytorch {mode}", **converse(peer, slice_ms, check, 120))


LLAMA = "zoo:llama:vocabulary=32000,positions=2048,width=4096,layers=32,heads=32,inner=11008"
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
            done = check.run(command, 120)
            outcome, fields = "failed", {"why": done.stderr[-1000:]}
            if done.returncode == 0:
                outcome, fields = "passed", json.loads(done.stdout)
            check.verdict("inference", outcome, network=source, batch=batch, **fields)


LLAMA_8B = ("zoo:llama:vocabulary=128256,positions=8192,width=4096,layers=32,heads=32,kv_heads=8,inner=14336,"
            "theta=500000,is_tied=false")
LLAMA_TINY = "zoo:llama:vocabulary=96,positions=96,width=32,layers=2,heads=4,kv_heads=2,inner=48"


def llama(check):
    """Prompts and decoding of a Llama of 8 billion parameters with random weights, batches of 1 to 64."""
    shapes = [(24, 4, 1), (8, 3, 3)] if check.quick else [(2048, 64, 1), (2048, 64, 8), (512, 64, 64)]
    precision = "f32" if check.quick else "bf16"
    command = [check.program("trireme"), "generate", LLAMA_TINY if check.quick else LLAMA_8B, "--device", check.device,
               "--precision", precision, "--cache-type", precision, "--chunk", 32 if check.quick else 2048, "--json",
               "--max-length", 96 if check.quick else 2304]
    for prompt, fresh, batch in shapes:
        command += ["--bench", f"prompt={prompt},new={fresh},batch={batch}"]
    done = check.run(command, 60 if check.quick else 240)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        check.verdict("llama", "passed", precision=precision, **row)
    if done.returncode != 0 or len(rows) != len(shapes):
        check.verdict("llama", "failed", why=done.stderr[-2000:])
    if "host_fallback" in done.stderr:
        check.verdict("llama", "failed", why=done.stderr[-500:])


PARTS = [("tests", tests), ("speed", speed), ("trajectory", trajectories), ("serve", serve), ("training", training),
         ("inference", inference), ("llama", llama)]
