# Whole programs on a device: planned without one, run, trained, served; held against the CPU's results.
# timeout: 240
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from onnx import TensorProto

from _serving import TRIREME, Server, Skip, add_simple, run_cases, temporary
from _training import make_patterns, read_log, train

scratch = tempfile.TemporaryDirectory(prefix="devices")
ROOM = Path(scratch.name)
MODELS = ["zoo:mlp", "zoo:nanogpt", "zoo:small_resnet:depth=8,width=8"]

CONFIG = """
run: {{name: patterns, directory: {directory}, steps: 40, seed: 5, device: {device}}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [32], classes: 4}}}}
data: {{path: {data}, hold_out: 0.2}}
batch: {{global: 32, micro: 16}}
optimizer: {{kind: adamw, ema_keep: 0.9}}
schedule: {{lr: 0.01}}
eval: {{every: 20}}
checkpoint: {{every: 20}}
log: {{progress: 0s}}
"""


def trireme(*args):
    return subprocess.run([TRIREME, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120)


def listed():
    return {d["name"]: d for d in json.loads(trireme("devices", "--json").stdout)}


def device():
    """What runs CUDA kernels here."""
    names = [name for name, d in listed().items() if d["is_there"] and name != "cpu"]
    if not names:
        raise Skip("built for GPUs, and there is none here")
    return names[0]


def devices_say_what_they_are():
    found = listed()
    assert found["cpu"]["is_there"] and "cores" in found["cpu"]["text"], found
    for name, d in found.items():
        assert d["is_there"] or len(d["text"]) > 10, (name, d)


def names_are_checked():
    bad = trireme("run", "zoo:mlp", "--device", "gpu")
    assert bad.returncode == 2 and "emulated" in bad.stderr, bad.stderr
    if not listed().get("cuda:0"):
        gone = trireme("run", "zoo:mlp", "--device", "cuda:0")
        assert gone.returncode == 6 and "CUDA" in gone.stderr, gone.stderr


def plans_need_no_device():
    for model in MODELS:
        plan = trireme("inspect", model, "--program", "--memory", "--device", "cuda")
        assert plan.returncode == 0 and "\non cuda: " in plan.stdout, plan.stdout + plan.stderr


def outputs(model, room, *options):
    done = trireme("run", model, "--seed", 3, "--batch", 2, "--repeat", 3, "--output", room, *options)
    assert done.returncode == 0, done.stderr
    return {p.name: np.load(p) for p in sorted(room.glob("*.npy"))}, done.stderr


def results_are_the_cpus():
    name = device()
    for i, model in enumerate(MODELS):
        here, _ = outputs(model, ROOM / f"cpu{i}")
        there, said = outputs(model, ROOM / f"device{i}", "--device", name)
        assert said.count("host_fallback") <= 1, said
        plan = trireme("inspect", model, "--program", "--batch", 2, "--device", name).stdout
        assert ("kernel=host:" in plan) == ("host_fallback" in said), said
        assert here.keys() == there.keys() and here
        for key, value in here.items():
            np.testing.assert_allclose(there[key], value, rtol=1e-3, atol=1e-4, err_msg=f"{model} {key}")


def what_has_no_kernel_is_refused_when_asked():
    refused = trireme("inspect", "zoo:small_resnet", "--program", "--device", "cuda", "--no-host-fallback")
    if refused.returncode == 0:
        assert "host:" not in refused.stdout
        return
    assert refused.returncode == 4 and "host fallback is off" in refused.stderr, refused.stderr


def profiles_time_each_step():
    done = trireme("run", "zoo:mlp", "--device", device(), "--profile", "--repeat", 2)
    assert done.returncode == 0 and "us in steps" in done.stdout, done.stderr


def profiles_open_in_perfetto():
    path = ROOM / "trace.json"
    done = trireme("run", "zoo:mlp", "--device", device(), "--profile", "--repeat", 2, "--perfetto", path)
    assert done.returncode == 0, done.stderr
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks >= {"compute", "copy"}, tracks
    slices = [e for e in events if e["ph"] == "X"]
    assert {"inputs", "results"} <= {e["name"] for e in slices} and all(e["dur"] >= 0 for e in slices), slices


def in_turn():
    """The name by which ranks take devices in turn; they share where there is one GPU."""
    return "emulated" if device() == "emulated" else "cuda:shared"


def ranks_meet_on_devices():
    done = trireme("comm", "bench", "--device", in_turn(), "--ranks", 2, "--max", 4096, "--time", "5ms", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["device_link"].split()[0] in ("calls", "nccl", "staged"), said["device_link"]
    assert all(p["seconds"] > 0 for p in said["operations"][0]["sizes"]), said
    topology = json.loads(trireme("devices", "--topology", "--json").stdout)
    assert topology and all(line["text"] for line in topology), topology


def models_of_several_ranks_answer_as_one():
    want, _ = outputs("zoo:nanogpt", ROOM / "one", "--device", device())
    for ranks in (("--tp", 2), ("--pp", 2)):
        got, _ = outputs("zoo:nanogpt", ROOM / f"many{ranks[0]}", "--device", in_turn(), *ranks)
        for key, value in want.items():
            np.testing.assert_allclose(got[key], value, rtol=1e-3, atol=1e-4, err_msg=f"{ranks} {key}")


def configure(name, where):
    path = ROOM / f"{name}.yaml"
    path.write_text(CONFIG.format(directory=ROOM / name, data=ROOM / "data", device=where))
    return path


def training_follows_the_cpu():
    make_patterns(ROOM / "data", samples=600)
    logs = []
    for where in ("cpu", device()):
        path = configure(f"train_{where.replace(':', '')}", where)
        code, stderr = train(path)
        assert code == 0, stderr
        logs.append(read_log(ROOM / path.stem))
    for kind in ("step", "eval"):
        want, got = ([e["loss"] for e in log[kind]] for log in logs)
        np.testing.assert_allclose(got, want, rtol=2e-3, err_msg=kind)
    # A device's checkpoint is the CPU's too.
    path = configure(f"train_{device().replace(':', '')}", "cpu")
    code, stderr = train(path, "--resume", "auto", "--run.steps", "60")
    assert code == 0, stderr


def served_on_a_device():
    repository = temporary()
    add_simple(repository, "simple_f32", TensorProto.FLOAT)
    with Server(repository, "--device", device(), "--instances", "2") as server:
        client = triton.InferenceServerClient(server.address)
        rng = np.random.default_rng(1)
        for rows in (1, 3, 1, 1, 3):
            inputs, sent = [], []
            for name in ("INPUT0", "INPUT1"):
                sent.append(rng.normal(size=(rows, 16)).astype(np.float32))
                inputs.append(triton.InferInput(name, sent[-1].shape, "FP32"))
                inputs[-1].set_data_from_numpy(sent[-1])
            answer = client.infer("simple_f32", inputs)
            np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), sent[0] + sent[1])
            np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), sent[0] - sent[1])


run_cases([(case.__name__, case) for case in [
    devices_say_what_they_are, names_are_checked, plans_need_no_device, results_are_the_cpus,
    what_has_no_kernel_is_refused_when_asked, profiles_time_each_step, profiles_open_in_perfetto, ranks_meet_on_devices,
    models_of_several_ranks_answer_as_one, training_follows_the_cpu, served_on_a_device]])
