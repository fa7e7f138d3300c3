# Restricted routes over both protocols, and the generate extension.
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from _serving import TRIREME, Server, Skip, add_simple, encoder_dir, link_tree, run_cases, temporary

repository = temporary()
add_simple(repository)
try:
    link_tree(encoder_dir(), repository / "minilm")
    has_encoder = True
except Skip:
    has_encoder = False


def call(server, path, body=None, headers=None):
    request = urllib.request.Request(server.url + path, None if body is None else json.dumps(body).encode(),
                                     headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def inputs(module):
    tensors = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for t in tensors:
        t.set_data_from_numpy(np.ones((1, 16), np.int32))
    return tensors


def refused(fragment, run):
    try:
        run()
    except InferenceServerException as error:
        assert fragment in str(error) and "restricted" in str(error), error
        return
    raise AssertionError("the call succeeded")


def categories():
    rules = ["--restrict", "inference:authorization=Bearer one", "--restrict",
             "model-repository,logging,shared-memory:admin=two"]
    with Server(repository, "--model-control", "explicit", "--load-model", "*", *rules) as server:
        h, c = triton_http.InferenceServerClient(server.address), triton.InferenceServerClient(server.grpc_address)
        for own, module, word in ((h, triton_http, "403"), (c, triton, "UNAVAILABLE")):
            assert own.is_server_ready() and own.get_model_metadata("simple")  # open categories
            refused(word, lambda: own.infer("simple", inputs(module)))
            refused(word, lambda: own.infer("simple", inputs(module), headers={"authorization": "Bearer two"}))
            assert own.infer("simple", inputs(module), headers={"authorization": "Bearer one"}).as_numpy(
                "OUTPUT0")[0, 0] == 2
            refused(word, lambda: own.load_model("simple"))
            refused(word, lambda: own.get_model_repository_index())
            refused(word, lambda: own.update_log_settings({"log_info": True}))
            own.load_model("simple", headers={"admin": "two"})
            assert own.get_log_settings(headers={"admin": "two"})
        assert c.infer("simple", inputs(triton), headers={"triton-grpc-protocol-authorization": "Bearer one"})
        done = []
        c.start_stream(lambda result, error: done.append((result, error)))
        c.async_stream_infer("simple", inputs(triton))
        c.stop_stream()
        assert "restricted" in str(done[0][1]), done
    with Server(repository, "--restrict", "all:k=1", "--restrict", "health:h=2", ready=False) as server:
        for path in ("/v2", "/metrics", "/", "/v2/models/simple", "/v2/models/stats", "/v2/health/ready"):
            assert call(server, path)[0] == 403, path
        assert call(server, "/v2/health/live", headers={"H": "2"})[0] == 200
        assert call(server, "/v2", headers={"K": "1"})[0] == 200


HTTP_ROUTES = {
    "health": ["GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/simple/ready",
               "GET /v2/models/simple/versions/1/ready"],
    "metadata": ["GET /v2", "GET /v2/models/simple", "GET /v2/models/simple/versions/1"],
    "inference": ["POST /v2/models/simple/infer", "POST /v2/models/simple/versions/1/infer",
                  "POST /v2/models/simple/generate", "POST /v2/models/simple/generate_stream"],
    "shared-memory": ["GET /v2/systemsharedmemory/status", "POST /v2/systemsharedmemory/region/x/register",
                      "POST /v2/systemsharedmemory/unregister", "GET /v2/cudasharedmemory/status"],
    "model-config": ["GET /v2/models/simple/config", "GET /v2/models/simple/versions/1/config"],
    "model-repository": ["POST /v2/repository/index", "POST /v2/repository/models/none/load",
                         "POST /v2/repository/models/none/unload"],
    "statistics": ["GET /v2/models/stats", "GET /v2/models/simple/stats", "GET /v2/models/simple/versions/1/stats",
                   "GET /metrics", "GET /"],
    "trace": ["GET /v2/trace/setting", "GET /v2/trace/setting/", "GET /v2/models/simple/trace/setting"],
    "logging": ["GET /v2/logging", "GET /v2/logging/"]}
GRPC_CALLS = {
    "health": [lambda c: c.is_server_live(), lambda c: c.is_server_ready(), lambda c: c.is_model_ready("simple")],
    "metadata": [lambda c: c.get_server_metadata(), lambda c: c.get_model_metadata("simple")],
    "inference": [lambda c: c.infer("simple", inputs(triton))],
    "shared-memory": [lambda c: c.get_system_shared_memory_status(), lambda c: c.get_cuda_shared_memory_status(),
                      lambda c: c.unregister_system_shared_memory()],
    "model-config": [lambda c: c.get_model_config("simple")],
    "model-repository": [lambda c: c.get_model_repository_index(), lambda c: c.load_model("none"),
                         lambda c: c.unload_model("none")],
    "statistics": [lambda c: c.get_inference_statistics()],
    "trace": [lambda c: c.get_trace_settings()],
    "logging": [lambda c: c.get_log_settings()]}


def is_refused_http(server, route):
    method, path = route.split()
    request = urllib.request.Request(server.url + path, b"{}" if method == "POST" else None, method=method)
    try:
        return urllib.request.urlopen(request, timeout=60).status == 403
    except urllib.error.HTTPError as error:
        return error.code == 403


def is_refused_grpc(client, call_):
    try:
        call_(client)
    except InferenceServerException as error:
        return "restricted" in str(error)
    return False


def protocols_agree():
    """Each category closes its own routes over HTTP and its own calls over gRPC, and no other."""
    assert HTTP_ROUTES.keys() == GRPC_CALLS.keys()
    for closed in HTTP_ROUTES:
        with Server(repository, "--restrict", f"{closed}:k=v", "--model-control", "explicit", "--load-model", "*",
                    ready=False) as server:
            client = triton.InferenceServerClient(server.grpc_address)
            while not any("serve ready" in line for line in server.log):
                time.sleep(0.01)
            for category, routes in HTTP_ROUTES.items():
                for route in routes:
                    assert is_refused_http(server, route) == (category == closed), (closed, route)
                for number, one in enumerate(GRPC_CALLS[category]):
                    assert is_refused_grpc(client, one) == (category == closed), (closed, category, number)


def secrets_from_a_file():
    """Rules come from a file, secrets in it from the environment: nothing secret is among the arguments."""
    rules = repository.parent / (repository.name + "-rules")
    rules.write_text("# callers\ninference,logging:authorization=Bearer ${TRIREME_TEST_KEY}\n\nstatistics:k=in-file\n")
    os.environ["TRIREME_TEST_KEY"] = "from-environment"
    try:
        with Server(repository, "--restrict-file", str(rules)) as server:
            arguments = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
            assert b"from-environment" not in arguments and b"in-file" not in arguments
            assert call(server, "/v2/logging")[0] == 403
            assert call(server, "/v2/logging", headers={"Authorization": "Bearer ${TRIREME_TEST_KEY}"})[0] == 403
            assert call(server, "/v2/logging", headers={"Authorization": "Bearer from-environment"})[0] == 200
            assert call(server, "/metrics", headers={"K": "in-file"})[0] == 200
            c = triton.InferenceServerClient(server.grpc_address)
            refused("UNAVAILABLE", lambda: c.infer("simple", inputs(triton)))
            assert c.infer("simple", inputs(triton), headers={"authorization": "Bearer from-environment"})
            assert not any("from-environment" in line or "in-file" in line for line in server.log)
        del os.environ["TRIREME_TEST_KEY"]
        done = subprocess.run([TRIREME, "serve", "--model-repository", str(repository), "--restrict-file", str(rules)],
                              capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and "TRIREME_TEST_KEY" in done.stderr, done
    finally:
        os.environ.pop("TRIREME_TEST_KEY", None)
        rules.unlink()


def generate():
    with Server(repository) as server:
        body = {"INPUT0": list(range(16)), "INPUT1": [1] * 16, "id": "g"}
        status, _, answer = call(server, "/v2/models/simple/generate", body)
        answer = json.loads(answer)
        assert status == 200 and answer["OUTPUT0"] == [i + 1 for i in range(16)] and answer["id"] == "g", answer
        status, headers, text = call(server, "/v2/models/simple/versions/1/generate_stream", body)
        assert status == 200 and headers["Content-Type"].startswith("text/event-stream"), headers
        assert text.startswith(b"data: ") and text.endswith(b"\n\n") and json.loads(text[6:]) == answer
        for bad, code in (({"INPUT0": [1] * 15, "INPUT1": [1] * 16}, 400), ({"INPUT0": [1] * 16}, 400),
                          ({"x": 1}, 400), ([], 400), ({"INPUT0": {"a": 1}, "INPUT1": 2}, 400),
                          ({"INPUT0": ["a"] * 16, "INPUT1": [1] * 16}, 400)):
            for path in ("generate", "generate_stream"):
                status, _, answer = call(server, f"/v2/models/simple/{path}", bad)
                assert status == code and "error" in json.loads(answer), (bad, answer)
        assert call(server, "/v2/models/nothing/generate", body)[0] == 404
        assert call(server, "/v2/models/simple/generate")[0] == 405


def generate_from_text():
    if not has_encoder:
        raise Skip("the encoder's files are not installed (./dev setup)")
    with Server(repository) as server:
        for key in ("text", "text_input"):
            answer = json.loads(call(server, "/v2/models/minilm/generate", {key: "three banks of oars"})[2])
            vector = np.array(answer["sentence_embedding"])
            assert vector.shape == (384, ) and abs(np.linalg.norm(vector) - 1) < 1e-5


try:
    run_cases([(case.__name__, case) for case in (categories, protocols_agree, secrets_from_a_file, generate,
                                                          generate_from_text)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
