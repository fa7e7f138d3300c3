# `trireme tune` on a small network: goal, files that serve, interruption, accuracy, refusals.
# timeout: 240
import json
import os
import re
import signal
import subprocess
import time
import urllib.request

import numpy as np
import onnx
from onnx import TensorProto, helper

from _serving import TRIREME, Server, run_cases, save, temporary, until, value

work = temporary()
WIDTH, DEPTH = 512, 6
# Small budgets: what is tested is that the steps fit together, not how fast this machine is.
QUICK = ["--instances", "1,2", "--threads", "1", "--max-batch", "1,4,8", "--window", "0", "--window", "2ms",
         "--probe", "4ms", "--passes", "1", "--trial", "150ms", "--stability", "100", "--top", "1"]


def network(path, width=WIDTH, depth=DEPTH, seed=1):
    """A chain of products with rectifiers between: x [batch, width] -> y [batch, width]."""
    random = np.random.default_rng(seed)
    nodes, weights, at = [], [], "x"
    for i in range(depth):
        weights.append(onnx.numpy_helper.from_array(
            (random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [at, f"w{i}"], [f"p{i}"]))
        at = "y" if i == depth - 1 else f"r{i}"
        nodes.append(helper.make_node("Identity" if at == "y" else "Relu", [f"p{i}"], [at]))
    save(nodes, [value("x", TensorProto.FLOAT, ["batch", width])], [value("y", TensorProto.FLOAT, ["batch", width])],
         path, weights)
    return path


model = network(work / "net.onnx")


def tune(*options, code=0, out="out", path=model):
    words = [TRIREME, "tune", str(path), "--out", str(work / out), *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    result = work / out / "result.json"
    return done, json.loads(result.read_text()) if code < 2 and result.exists() else None


def infer(server, name, rows):
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": list(rows.shape),
                                   "data": rows.ravel().tolist()}]}).encode()
    answer = json.loads(urllib.request.urlopen(f"{server.url}/v2/models/{name}/infer", body, timeout=20).read())
    return np.array(answer["outputs"][0]["data"], np.float32).reshape(answer["outputs"][0]["shape"])


def finds_and_serves():
    done, result = tune("--p99", "400ms", *QUICK)
    assert "Goal reached." in done.stdout and result["reached"] and result["measured"], done.stdout
    chosen = result["chosen"]
    assert chosen["p99_ms"] <= 400 and chosen["throughput"] > 0 and chosen["memory_bytes"] > 1 << 20, chosen
    run = result["trials"][0]["runs"][0]
    assert run["predicted"]["throughput"] > 0 and run["measured"]["throughput"] > 0, run
    # What the front end adds is a difference of measurements, 0 where other work made the lone batches slower.
    assert len(result["predictions"]) >= 20 and result["front_end"]["overhead_us"] >= 0, result["front_end"]
    page = (work / "out/report.html").read_text()
    assert page.count("<svg") == 3 and "http://" not in page and "<script" not in page
    assert "Prediction beside measurement" in (work / "out/report.md").read_text()
    # What was written serves as chosen, and answers as the network does in f32.
    with Server(work / "out/repository") as server:
        config = json.loads(urllib.request.urlopen(f"{server.url}/v2/models/net/config", timeout=5).read())
        assert config["max_batch_size"] == chosen["max_batch"], config
        assert config["instance_group"][0]["count"] == chosen["instances"], config
        assert config["parameters"]["threads"]["string_value"] == str(chosen["threads"]), config
        rows = np.random.default_rng(3).standard_normal((2, WIDTH)).astype(np.float32)[:chosen["max_batch"]]
        x = rows
        for i, w in enumerate(onnx.load(model).graph.initializer):
            x = x @ onnx.numpy_helper.to_array(w)
            x = x if i == DEPTH - 1 else np.maximum(x, 0)
        error = np.abs(infer(server, "net", rows) - x).max() / np.abs(x).max()
        assert error < (1e-4 if chosen["variant"] == "f32" else 0.03), error


def measurements(path):
    """Whole lines: what a new run may count on."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def goes_on_after_kills():
    """Killed again and again wherever it is; every run begins with all that the journal has, and it ends."""
    journal = work / "killed/journal.jsonl"
    words = [TRIREME, "tune", str(model), "--out", str(work / "killed"), "--p99", "400ms", *QUICK]
    kills, result = 0, None
    for attempt in range(40):
        before = measurements(journal)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # Late enough to make some way: until a few new measurements are there.
        wanted = before + 4 + 2 * (attempt % 3)
        while process.poll() is None and measurements(journal) < wanted and kills < 5:
            time.sleep(0.002)
        if process.poll() is None and kills < 5:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            assert measurements(journal) >= before
            continue
        text = process.communicate(timeout=120)[0]
        result = json.loads((work / "killed/result.json").read_text())
        assert process.returncode in (0, 1), text
        assert result["resumed"] == before, (result["resumed"], before)
        break
    assert kills >= 3 and result, kills
    # The server of a killed search is gone with it.
    def servers():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = open(f"/proc/{pid}/cmdline", "rb").read()
            except OSError:
                continue
            if str(work / "killed/trial").encode() in command:
                yield command

    until(lambda: not list(servers()), "a server of the search lives on")
    # Once more: nothing is left to measure, and the choice is the same.
    lines = measurements(journal)
    done, again = tune("--p99", "400ms", *QUICK, code=0 if result["reached"] else 1, out="killed")
    assert measurements(journal) == lines == again["resumed"], (lines, measurements(journal))
    assert again["chosen"] == result["chosen"], (again["chosen"], result["chosen"])
    # A line cut short is measured again; another model's journal is of no use.
    data = journal.read_bytes()
    journal.write_bytes(data[:-20])
    _, cut = tune("--p99", "400ms", *QUICK, code=0 if result["reached"] else 1, out="killed")
    assert cut["resumed"] == lines - 1, (cut["resumed"], lines)
    _, other = tune("--top", 0, "--instances", 1, *QUICK[2:6], "--probe", "2ms", "--passes", 1, out="killed",
                    path=network(work / "other.onnx", seed=2))
    assert other["resumed"] == 0, other["resumed"]


def unreachable_goal():
    done, result = tune("--p99", "2us", "--precision", "f32", "--top", 0, *QUICK[:-2], code=1, out="never")
    assert "Goal not reached" in done.stdout and not result["reached"], done.stdout
    assert result["chosen"]["p99_ms"] > 0.002, result["chosen"]
    assert (work / "never/repository/net/config.pbtxt").exists()
    # What was measured and missed is not shown as what was predicted.
    done, result = tune("--p99", "2us", "--precision", "f32", *QUICK, code=1, out="missed")
    runs = [run["measured"] for trial in result["trials"] for run in trial["runs"]]
    assert result["measured"] and "(measured)" in done.stdout and not result["chosen"]["feasible"], done.stdout
    assert any(abs(result["chosen"]["p99_ms"] - run["p99_ns"] * 1e-6) < 1e-9 for run in runs), result["chosen"]


def fixed_loads():
    done, result = tune("--rate", 30, "--objective", "cost", "--price", "0.36/h", "--price-per", "core",
                        "--p95", "900ms", *QUICK, out="rate")
    chosen = result["chosen"]
    assert result["reached"] and chosen["instances"] == 1, done.stdout
    cost = 0.36 / 3600 / chosen["throughput"] * 1e6
    assert abs(chosen["cost_per_million"] - cost) < 1e-6 * cost, (chosen, cost)
    done, result = tune("--concurrency", 3, *QUICK, out="closed")
    measured = result["trials"][0]["runs"][0]["measured"]
    # Little's law: clients = throughput times latency, less what the clients themselves take.
    assert 1 < measured["throughput"] * measured["mean_ns"] * 1e-9 < 3.3, measured


def accuracy():
    done, result = tune("--tolerance", 0, "--top", 0, *QUICK[:-2], out="exact")
    low = next(v for v in result["variants"] if v["name"] == "bf16")
    assert 0 < low["error"] < 0.03 and "tolerance" in low["refusal"], low
    assert "left out: bf16" in done.stdout and result["chosen"]["variant"] == "f32", done.stdout
    # Another network under the same name is found out, and so is one that takes other inputs.
    wrong = network(work / "wrong.onnx", seed=9)
    _, result = tune("--variant", f"wrong={wrong}", "--top", 0, *QUICK[:-2], out="wrong")
    wrong = next(v for v in result["variants"] if v["name"] == "wrong")
    assert wrong["error"] > 0.1 and wrong["refusal"], wrong
    narrow = network(work / "narrow.onnx", width=96)
    done, _ = tune("--variant", f"narrow={narrow}", "--top", 0, *QUICK[:-2], out="narrow")
    assert "left out: narrow" in done.stdout, done.stdout


def keeps_its_configuration():
    root = work / "models/own"
    network(root / "1/model.onnx")
    (root / "config.pbtxt").write_text('max_batch_size: 16\ninput [{name: "x" data_type: TYPE_FP32 dims: [512]}]\n'
                                       'response_cache { enable: true }\n'
                                       'parameters { key: "k" value { string_value: "v" } }\n')
    _, result = tune("--top", 0, *QUICK[:-2], out="own", path=root)
    assert result["model"] == "own"
    text = (work / "own/repository/own/config.pbtxt").read_text()
    assert "response_cache" in text and '"k"' in text and len(re.findall("max_batch_size", text)) == 1, text
    with Server(work / "own/repository") as server:
        assert infer(server, "own", np.zeros((1, WIDTH), np.float32)).shape == (1, WIDTH)
    # What was written cannot be tuned into its own place, which is written anew.
    written = work / "own/repository/own"
    done, _ = tune("--top", 0, *QUICK[:-2], code=2, out="own", path=written)
    assert "written anew" in done.stderr and (written / "1/model.onnx").exists(), done.stderr


def takes_external_data_along():
    """Weights in files of any name, also in a folder below; what only has a similar name stays."""
    root = work / "external"
    proto = onnx.load(network(root / "own.onnx"))
    (root / "weights").mkdir()
    for i, weight in enumerate(proto.graph.initializer):
        name = ("5f0c.data", "weights/rest.bin")[i % 2]
        with (root / name).open("ab") as file:
            onnx.external_data_helper.set_external_data(weight, name, file.tell(), len(weight.raw_data))
            file.write(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
    (root / "own.onnx").write_bytes(proto.SerializeToString())
    (root / "own_notes.txt").write_text("not of the model")
    tune("--precision", "f32", "--top", 0, *QUICK[:-2], out="beside", path=root / "own.onnx")
    version = work / "beside/repository/own/1"
    files = sorted(str(f.relative_to(version)) for f in version.rglob("*") if f.is_file())
    assert files == ["5f0c.data", "model.onnx", "weights/rest.bin"], files
    with Server(work / "beside/repository") as server:
        assert infer(server, "own", np.zeros((1, WIDTH), np.float32)).shape == (1, WIDTH)


def cost_of_inferences():
    """The server's cost against its busy time, as other metrics count it, times a price worked out here."""
    prices = work / "prices.yaml"
    prices.write_text("core: 0.9  # an hour\n")
    with Server(model.parent / "models", "--threads", "2", "--prices", str(prices)) as server:
        assert server.metrics()['trireme_cost_per_million_inferences{model="own",version="1"}'] == 0
        for rows in (1, 3, 1, 2):
            for _ in range(10):
                infer(server, "own", np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32))
        metrics = server.metrics()
        label = '{model="own",version="1"}'
        # One request a batch: its times are the batch's. Kept answers (three of four are) ran nothing.
        busy_s = sum(metrics[f"nv_inference_compute_{part}_duration_us{label}"] for part in ("input", "infer")) * 1e-6
        expected = busy_s * 2 * 0.9 / 3600
        got = metrics[f"trireme_cost_total{label}"]
        assert abs(got - expected) <= 0.05 * expected + 2e-6 * 2 * 0.9 / 3600, (got, expected)
        rows = metrics[f"nv_inference_count{label}"]
        assert rows == 6, rows
        shown = metrics[f"trireme_cost_per_million_inferences{label}"]
        assert abs(shown - got / rows * 1e6) < 1e-6 * shown, (shown, got)
    bad = subprocess.run([TRIREME, "serve", "--model-repository", str(work), "--prices", "/no/such"],
                         capture_output=True, text=True, timeout=20)
    assert bad.returncode == 3 and "/no/such" in bad.stderr, bad


def refusals():
    for code, words, says in [
            (3, ["--p99", "5ms"], "no model"), (2, ["--price", "0.4/day", "--objective", "cost"], "--price"),
            (2, ["--price", "0.4/h"], "--objective cost"), (2, ["--precision", "int8"], "--variant"),
            (2, ["--rate", 3, "--concurrency", 3], "exclude"), (2, ["--threads", 9999], "no layout"),
            (2, ["--variant", "nothing"], "name=PATH"), (3, ["--variant", "q=/no/such.onnx"], "variant 'q'"),
            (2, ["--test-data", "/no/such"], "no directory"), (2, ["--window", "soon"], "duration")]:
        absent = code == 3 and "--p99" in words
        done, _ = tune(*words, code=code, out="refused", path="/no/such.onnx" if absent else model)
        assert says in done.stderr, (words, done.stderr)
    done = subprocess.run([TRIREME, "tune", str(model), str(model)], capture_output=True, text=True)
    assert done.returncode == 4 and "not tuned together" in done.stderr, done


run_cases([(case.__name__, case) for case in [finds_and_serves, goes_on_after_kills, unreachable_goal, fixed_loads,
                                              accuracy, keeps_its_configuration, takes_external_data_along,
                                              cost_of_inferences, refusals]])
