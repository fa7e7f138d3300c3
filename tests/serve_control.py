# Models loaded, reloaded and unloaded while the server runs; versions side by side; raw requests; settings.
import json
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from _serving import Server, add_simple, run_cases, save, temporary, until, value


def add_constant(repository, number, version=1, name="adder", config=None):
    """y = x + number over [batch, 4]: the answer tells which file it came from."""
    bias = numpy_helper.from_array(np.full(4, number, np.float32), "b")
    path = repository / name / str(version) / "model.onnx"
    fresh = path.with_suffix(".new")
    save([helper.make_node("Add", ["x", "b"], ["y"])], [value("x", TensorProto.FLOAT, ["batch", 4])],
         [value("y", TensorProto.FLOAT, ["batch", 4])], fresh, [bias])
    fresh.rename(path)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def post(server, path, body=b"", headers=None, method="POST"):
    request = urllib.request.Request(server.url + path, None if method == "GET" else body, headers or {},
                                     method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def ask(client, name="adder", version=""):
    x = triton.InferInput("x", [1, 4], "FP32")
    x.set_data_from_numpy(np.zeros((1, 4), np.float32))
    result = client.infer(name, [x], model_version=version)
    return float(result.as_numpy("y")[0, 0]), result.get_response()["model_version"]


def refused(fragment, call):
    try:
        call()
    except InferenceServerException as error:
        assert fragment in str(error), f"{fragment!r} is not in {error}"
        return
    raise AssertionError(f"no refusal with {fragment!r}")


def explicit_control():
    repository = temporary()
    add_constant(repository, 1)
    add_simple(repository)
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"\x08\x09not a model")
    with Server(repository, "--model-control", "explicit", "--load-model", "simple", "--threads", "1") as server:
        c = triton.InferenceServerClient(server.address)
        index = {e["name"]: e for e in c.get_model_repository_index()}
        assert index["simple"]["state"] == "READY" and "state" not in index["adder"], index
        assert not c.is_model_ready("adder")
        c.load_model("adder")
        assert c.is_model_ready("adder") and ask(c) == (1.0, "1")
        add_constant(repository, 2)
        assert ask(c) == (1.0, "1")
        c.load_model("adder")
        assert ask(c) == (2.0, "1")
        # A reload that fails leaves what served.
        (repository / "adder" / "1" / "model.onnx").rename(repository / "kept.onnx")
        (repository / "adder" / "1" / "model.onnx").write_bytes(b"nonsense")
        refused("load failed for model 'adder'", lambda: c.load_model("adder"))
        assert ask(c) == (2.0, "1")
        (repository / "kept.onnx").rename(repository / "adder" / "1" / "model.onnx")
        counts = c.get_inference_statistics("adder")["model_stats"][0]
        assert counts["inference_stats"]["success"]["count"] == 4, counts  # goes on across the reload
        assert server.metrics()['nv_inference_request_success{model="adder",version="1"}'] == 4
        c.unload_model("adder", unload_dependents=True)
        assert not c.is_model_ready("adder")
        refused("has no available versions", lambda: ask(c))
        entry = {e["name"]: e for e in c.get_model_repository_index()}["adder"]
        assert entry["state"] == "UNAVAILABLE" and entry["reason"] == "unloaded", entry
        assert not any('"adder"' in key for key in server.metrics())
        c.load_model("adder")
        assert ask(c) == (2.0, "1")
        assert server.metrics()['nv_inference_request_success{model="adder",version="1"}'] == 5
        refused("failed to poll from model repository", lambda: c.load_model("nothing"))
        refused("load failed for model 'broken'", lambda: c.load_model("broken"))
        c.unload_model("nothing")
        overrides(c, repository)
        base = "/v2/repository/models/"
        for bad in ("..%2fx", "..", "%2fetc", "a%2fb", "a%2f", "%20..", "..%20", "a%5cb"):
            assert b"model name must not contain path traversal characters" in post(server, base + bad + "/load")[2]
            assert post(server, base + bad + "/unload", b'{"parameters":{"unload_dependents":true}}')[0] == 200, bad
        for blank in ("%20", "%09%0a", ""):
            assert b"Model name cannot be empty. Please enter" in post(server, base + blank + "/load")[2], blank
        for fine in ("...", "..my_model", "model..1"):
            assert b"failed to poll from model repository" in post(server, base + fine + "/load")[2], fine
        assert post(server, base + "/load")[0] == 400
        assert post(server, base + "adder/reload")[0] == 404
        status, headers, _ = post(server, base + "adder/load", method="GET")
        assert status == 405 and headers["Allow"] == "POST"
        assert post(server, base + "adder/load", b"[")[0] == 400
        assert post(server, base + "adder/load", b'{"parameters":{"x":1}}')[0] == 400
        assert post(server, base + "adder/unload", b'{"parameters":{"unload_dependents":1}}')[0] == 400
        assert post(server, "/v2/repository/other/index")[0] == 501
        assert server.stop() == 0
    shutil.rmtree(repository)


def overrides(c, repository):
    """A load that brings its own config, or config and files; the next plain load is of the repository again."""
    printed = c.get_model_config("adder")
    c.load_model("adder", config='{"max_batch_size": "2", "parameters": {"note": {"string_value": "given"}}}')
    config = c.get_model_config("adder")
    assert config["max_batch_size"] == 2 and config["parameters"]["note"]["string_value"] == "given", config
    c.load_model("adder", config=json.dumps(printed))  # what the server printed, given back
    assert c.get_model_config("adder") == printed
    add_constant(repository, 7, 1, "seven")
    content = (repository / "seven" / "1" / "model.onnx").read_bytes()
    refused("requires a config", lambda: c.load_model("adder", files={"file:3/model.onnx": content}))
    for path in ("file:../model.onnx", "file:/tmp/x", "file:1/../../x"):
        refused("path traversal", lambda: c.load_model("adder", config="{}", files={path: content}))
    assert ask(c) == (2.0, "1")
    c.load_model("adder", config="{}", files={"file:3/model.onnx": content})
    assert ask(c) == (7.0, "3")
    c.load_model("elsewhere", config='{"name": "elsewhere"}', files={"file:1/model.onnx": content})
    assert ask(c, "elsewhere") == (7.0, "1")
    c.unload_model("elsewhere")
    refused("not that of the model", lambda: c.load_model("adder", config='{"name": "x"}'))
    refused("nonsense", lambda: c.load_model("adder", config='{"nonsense": 1}'))
    refused("load failed", lambda: c.load_model("adder", config="{}", files={"file:1/model.onnx": b"x"}))
    assert ask(c) == (7.0, "3")
    c.load_model("adder")
    assert ask(c) == (2.0, "1") and not list(Path(tempfile.gettempdir()).glob("trireme-load-*"))
    shutil.rmtree(repository / "seven")


def closed_control():
    repository = temporary()
    add_constant(repository, 1)
    with Server(repository) as server:
        c = triton.InferenceServerClient(server.address)
        refused("explicit model load / unload is not allowed", lambda: c.load_model("adder"))
        refused("explicit model load / unload is not allowed", lambda: c.unload_model("adder"))
        assert ask(c) == (1.0, "1")
    shutil.rmtree(repository)


def version_policies():
    repository = temporary()
    policies = {"latest": ("", [3]), "two": ("version_policy { latest { num_versions: 2 } }", [2, 3]),
                "all": ("version_policy { all { } }", [1, 2, 3]),
                "some": ("version_policy { specific { versions: [ 1, 3 ] } }", [1, 3])}
    for name, (text, _) in policies.items():
        for version in (1, 2, 3):
            add_constant(repository, 10 * version, version, name, text)
    with Server(repository, "--model-control", "explicit", "--load-model", "*") as server:
        c = triton.InferenceServerClient(server.address)
        for name, (_, served) in policies.items():
            assert c.get_model_metadata(name)["versions"] == [str(v) for v in served], name
            assert ask(c, name) == (30.0, "3")
            for version in (1, 2, 3):
                if version in served:
                    assert ask(c, name, str(version)) == (10.0 * version, str(version))
                    stats = c.get_inference_statistics(name, str(version))["model_stats"]
                    assert stats[0]["version"] == str(version)
                else:
                    refused("is not found", lambda: ask(c, name, str(version)))
        # A new policy and a new version take effect with a load.
        add_constant(repository, 40, 4, "some", "version_policy { specific { versions: 4 } }")
        c.load_model("some")
        assert ask(c, "some") == (40.0, "4")
        refused("is not found", lambda: ask(c, "some", "1"))
    shutil.rmtree(repository)


def hammer(server, stop, answers, errors):
    c = triton.InferenceServerClient(server.address)
    while not stop.is_set():
        try:
            answers.append(ask(c)[0])
        except Exception as error:  # noqa: BLE001 any failure is what this looks for
            errors.append(repr(error))
            return


def reload_under_load():
    """Forty reloads while eight clients ask without a pause: no failure, and each answer is of one file."""
    repository = temporary()
    add_constant(repository, 0)
    with Server(repository, "--model-control", "explicit", "--load-model", "adder", "--threads", "1") as server:
        stop, answers, errors = threading.Event(), [], []
        threads = [threading.Thread(target=hammer, args=(server, stop, answers, errors)) for _ in range(8)]
        for t in threads:
            t.start()
        control = triton.InferenceServerClient(server.address)
        for number in range(1, 41):
            add_constant(repository, number)
            control.load_model("adder")
            assert ask(control)[0] == number
            time.sleep(0.02)
        stop.set()
        for t in threads:
            t.join()
        assert not errors, errors[:3]
        assert len(answers) > 200 and set(answers) <= {float(n) for n in range(41)}, len(answers)
        assert len(set(answers)) > 20, "the load did not meet the reloads"
    shutil.rmtree(repository)


def polled():
    repository = temporary()
    add_constant(repository, 1)
    with Server(repository, "--model-control", "poll", "--poll-interval", "100ms") as server:
        c = triton.InferenceServerClient(server.address)
        refused("not allowed", lambda: c.load_model("adder"))
        stop, answers, errors = threading.Event(), [], []
        client = threading.Thread(target=hammer, args=(server, stop, answers, errors))
        client.start()
        add_constant(repository, 2, 2)
        until(lambda: ask(c) == (2.0, "2"), "the new version")
        (repository / "adder" / "2" / "model.onnx").write_bytes(b"nonsense")
        until(lambda: "model_failed" in "".join(server.log), "the refusal")
        assert ask(c) == (2.0, "2")
        add_constant(repository, 3, 2)
        until(lambda: ask(c) == (3.0, "2"), "the repair")
        stop.set()
        client.join()
        assert not errors, errors
        add_simple(repository)
        until(lambda: c.is_model_ready("simple"), "the new model")
        shutil.rmtree(repository / "simple")
        until(lambda: not c.is_model_ready("simple"), "its end")
        assert ask(c) == (3.0, "2")
    shutil.rmtree(repository)


def polled_ensemble():
    """An ensemble that is there before its member is loaded once the member is."""
    repository, outside = temporary(), temporary()
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text("""platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling { step { model_name: "adder" model_version: -1 input_map { key: "x" value: "x" }
  output_map { key: "y" value: "y" } } }
""")
    with Server(repository, "--model-control", "poll", "--poll-interval", "100ms") as server:
        c = triton.InferenceServerClient(server.address)
        assert not c.is_model_ready("both")
        add_constant(outside, 4)
        (outside / "adder").rename(repository / "adder")
        until(lambda: c.is_model_ready("both"), "the ensemble")
        assert ask(c, "both")[0] == 4.0
    shutil.rmtree(repository)
    shutil.rmtree(outside)


def links():
    """The owner's links in the repository are followed, also in circles; a model that cannot be is listed."""
    repository, outside = temporary(), temporary()
    add_constant(outside, 3)
    (repository / "whole").symlink_to(outside / "adder")
    (repository / "version").mkdir()
    (repository / "version" / "1").symlink_to(outside / "adder" / "1")
    add_constant(repository, 5, 1, "circle")
    (repository / "circle" / "a").mkdir()
    for name in ("b", "c"):
        (repository / "circle" / "a" / name).symlink_to("..")
    add_constant(repository, 7, 1, "nowhere")
    (repository / "nowhere" / "config.pbtxt").symlink_to(outside / "nothing")
    add_constant(repository, 7, 1, "cold", """max_batch_size: 4 model_warmup { name: "w" batch_size: 1
        inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 input_data_file: "f" } } }""")
    with Server(repository, "--model-control", "explicit", "--load-model", "*") as server:
        c = triton.InferenceServerClient(server.address)
        reasons = {e["name"]: e.get("reason", "") for e in c.get_model_repository_index()}
        assert "config.pbtxt" in reasons["nowhere"] and "model_warmup 'w': input 'x'" in reasons["cold"], reasons
        assert [ask(c, name)[0] for name in ("whole", "version", "circle")] == [3.0, 3.0, 5.0]
    with Server(repository, "--model-control", "explicit", "--load-model", "nothing") as server:
        c = triton.InferenceServerClient(server.address)
        entry = {e["name"]: e for e in c.get_model_repository_index()}["nothing"]
        assert entry["state"] == "UNAVAILABLE" and "holds no such directory" in entry["reason"], entry
    shutil.rmtree(repository)
    shutil.rmtree(outside)


def flat_memory():
    """1,000 loads and unloads of a model with 1 MiB of weights: what is resident stays where it was."""
    repository = temporary()
    weight = numpy_helper.from_array(np.ones((512, 512), np.float32), "w")
    save([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", TensorProto.FLOAT, ["batch", 512])],
         [value("y", TensorProto.FLOAT, ["batch", 512])], repository / "big" / "1" / "model.onnx", [weight])
    with Server(repository, "--model-control", "explicit", "--threads", "1", "--max-batch", "2") as server:
        c = triton.InferenceServerClient(server.address)
        resident = []
        for cycle in range(1000):
            c.load_model("big")
            c.unload_model("big")
            if cycle % 100 == 99:
                resident.append(server.metrics()["process_resident_memory_bytes"])
        print(f"resident MiB after each 100 cycles: {[round(r / 2**20, 1) for r in resident]}", flush=True)
        # The first hundreds of cycles end where the allocator has met every thread; 400 more held 400 MiB of weights.
        growth = min(resident[6:]) - min(resident[3:6])
        assert growth < 2 * 2**20, resident
    shutil.rmtree(repository)


def raw_requests():
    repository = temporary()
    add_constant(repository, 5)
    add_simple(repository)
    save([helper.make_node("Neg", ["x"], ["y"])], [value("x", TensorProto.FLOAT, ["a", 3, "b"])],
         [value("y", TensorProto.FLOAT, ["a", 3, "b"])], repository / "open" / "1" / "model.onnx")
    (repository / "open" / "config.pbtxt").write_text("max_batch_size: 0\n")
    zero = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    with Server(repository) as server:
        x = np.arange(4, dtype=np.float32)
        status, headers, body = post(server, "/v2/models/adder/infer", x.tobytes(), zero)
        assert status == 200, body
        split = int(headers["Inference-Header-Content-Length"])
        assert json.loads(body[:split])["outputs"][0]["shape"] == [1, 4]
        np.testing.assert_array_equal(np.frombuffer(body[split:], np.float32), x + 5)
        for size in (0, 3, 12, 20):
            assert post(server, "/v2/models/adder/infer", b"\0" * size, zero)[0] == 400, size
        answer = post(server, "/v2/models/simple/infer", b"\0" * 64, zero)
        assert answer[0] == 400 and b"Raw request must only have 1 input" in answer[2], answer
        answer = post(server, "/v2/models/open/infer", b"\0" * 12, zero)
        assert answer[0] == 400 and b"more than one variable-sized dimension" in answer[2], answer
    shutil.rmtree(repository)


def settings():
    repository = temporary()
    add_constant(repository, 1)
    with Server(repository) as server:
        c = triton.InferenceServerClient(server.address)
        before = c.get_log_settings()
        assert before["log_info"] and before["log_verbose_level"] == 0, before
        after = c.update_log_settings({"log_info": False, "log_warning": False})
        assert after["log_error"] and not after["log_info"] and c.get_log_settings() == after
        assert c.update_log_settings({"log_info": True, "log_warning": True, "log_verbose_level": 1})["log_info"]
        refused("one threshold", lambda: c.update_log_settings({"log_error": False}))
        refused("log file location", lambda: c.update_log_settings({"log_file": "x"}))
        refused("unknown log setting", lambda: c.update_log_settings({"log_x": True}))
        refused("Invalid value", lambda: c.update_log_settings({"log_info": 1}))
        assert c.get_trace_settings()["trace_level"] == ["OFF"]
        assert c.get_trace_settings("adder")["trace_rate"] == "1000"
        assert c.update_trace_settings("adder", {"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
        refused("--trace-file or --trace-otlp", lambda: c.update_trace_settings(None, {"trace_level": ["TIMESTAMPS"]}))
        refused("is not found", lambda: c.get_trace_settings("nothing"))
        assert c.get_system_shared_memory_status() == [] and c.get_cuda_shared_memory_status() == []
        refused("shared memory is not served", lambda: c.register_system_shared_memory("a", "/a", 4))
        stats = c.get_inference_statistics()["model_stats"]
        assert [s["name"] for s in stats] == ["adder"]
        for path, method, allow in (("/v2/logging", "PUT", "GET, POST"), ("/v2", "POST", "GET"),
                                    ("/v2/repository/index", "GET", "POST"), ("/v2/models/stats", "POST", "GET"),
                                    ("/v2/models/adder/infer", "GET", "POST"),
                                    ("/v2/models/adder/versions/1/stats", "DELETE", "GET")):
            status, headers, _ = post(server, path, method=method)
            assert status == 405 and headers["Allow"] == allow, (path, status, headers)
        for path in ("/v2/x", "/v3", "/v2/models", "/v2/models/adder/x", "/v2/health"):
            status, _, body = post(server, path, method="GET")
            assert status == 404 and json.loads(body) == {"error": "Not Found"}, (path, status, body)
    shutil.rmtree(repository)


run_cases([(case.__name__, case) for case in (
    explicit_control, closed_control, version_policies, reload_under_load, polled, polled_ensemble, links,
    raw_requests, settings,
    flat_memory)])
