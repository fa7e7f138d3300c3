# Restricted routes over both protocols, and the generate extension.
import fcntl
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
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
        try:
            c.async_stream_infer("simple", inputs(triton))
        except InferenceServerException:
            pass  # refused before its first message
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


def raw_grpc(path, *messages):
    """A call of any service with messages as bytes; gives the answers."""
    def run(c):
        return list(c._channel.stream_stream(path)(iter(messages), timeout=30))  # pylint: disable=protected-access
    return run


def reflection(version):
    return raw_grpc(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo", b"\x3a\x01*")


GRPC_CALLS = {
    "health": [lambda c: c.is_server_live(), lambda c: c.is_server_ready(), lambda c: c.is_model_ready("simple"),
               raw_grpc("/grpc.health.v1.Health/Check", b"")],
    "metadata": [lambda c: c.get_server_metadata(), lambda c: c.get_model_metadata("simple"), reflection("v1"),
                 reflection("v1alpha")],
    "inference": [lambda c: c.infer("simple", inputs(triton)),
                  raw_grpc("/inference.GRPCInferenceService/ModelStreamInfer")],
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
    except (InferenceServerException, grpc.RpcError) as error:
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


def keys_of_models():
    """A model's keys stand in the place of its category's, whichever wire names the model."""
    rules = ["--restrict", "inference:k=all", "--restrict", "inference,model-config@gold,silver*:k=own"]
    for name in ("gold", "silver-2"):
        if not (repository / name).exists():
            add_simple(repository, name)
    try:
        with Server(repository, *rules) as server:
            h, c = triton_http.InferenceServerClient(server.address), triton.InferenceServerClient(server.grpc_address)
            for own, module, word in ((h, triton_http, "403"), (c, triton, "UNAVAILABLE")):
                for name, key, other in (("simple", "all", "own"), ("gold", "own", "all"), ("silver-2", "own", "all")):
                    assert own.infer(name, inputs(module), headers={"k": key}).as_numpy("OUTPUT0")[0, 0] == 2
                    refused(word, lambda: own.infer(name, inputs(module), headers={"k": other}))
                    refused(word, lambda: own.infer(name, inputs(module)))
                assert own.get_model_config("simple")
                refused(word, lambda: own.get_model_config("gold"))
                assert own.get_model_config("gold", headers={"k": "own"})
            for path in ("/v2/models/gol%64/config", "/v2/models/gold/versions/1/config", "/v2/models/gold/config/"):
                assert call(server, path)[0] == 403, path
            # Within a stream each message is looked at.
            done = []
            c.start_stream(lambda result, error: done.append(error), headers={"k": "all"})
            c.async_stream_infer("simple", inputs(triton))
            deadline = time.monotonic() + 20
            while not done and time.monotonic() < deadline:
                time.sleep(0.01)  # a refusal ends the stream, and what is not answered by then has no answer
            c.async_stream_infer("gold", inputs(triton))
            c.stop_stream()
            assert done[0] is None and "restricted" in str(done[1]), done
    finally:
        for name in ("gold", "silver-2"):
            shutil.rmtree(repository / name)


CONTROL_CATEGORIES = ("shared-memory", "model-repository", "trace", "logging")
CONTROL = [route for category in CONTROL_CATEGORIES for route in HTTP_ROUTES[category]]


def own_address():
    """An address of this machine that is not loopback; None: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address = probe.getsockname()[0]
        except OSError:
            return None
    return None if address.startswith("127.") else address


def other_machines_need_a_key():
    """Without a rule, control calls are for this machine; the rest is for whoever reaches the port."""
    forwarded = {"X-Forwarded-For": "203.0.113.7"}
    with Server(repository, "--host", "0.0.0.0") as server:
        ways = [(server.url, forwarded)]
        if own_address():
            ways.append((f"http://{own_address()}:{server.port}", {}))
        else:
            print("this machine has no other address: only forwarded calls are tried")
        for url, headers in ways:
            for category, routes in HTTP_ROUTES.items():
                for route in routes:
                    method, path = route.split()
                    body = b"{}" if method == "POST" else None
                    request = urllib.request.Request(url + path, body, headers, method=method)
                    try:
                        status, text = urllib.request.urlopen(request, timeout=60).status, b""
                    except urllib.error.HTTPError as error:
                        status, text = error.code, error.read()
                    is_closed = status == 403 and b"other machines" in text
                    assert is_closed == (route in CONTROL), (url, route, status, text)
        assert call(server, "/v2/logging", {"log_info": True})[0] == 200  # here
        if own_address():
            c = triton.InferenceServerClient(f"{own_address()}:{server.grpc_port}")
            assert c.infer("simple", inputs(triton))
            for category in CONTROL_CATEGORIES:
                for one in GRPC_CALLS[category]:
                    assert is_refused_grpc(c, one), category
    with Server(repository, "--restrict", "logging:k=1", "--restrict", "trace:anyone") as server:
        assert call(server, "/v2/logging", {"log_info": True}, {**forwarded, "k": "1"})[0] == 200
        assert call(server, "/v2/trace/setting", {"trace_rate": "7"}, forwarded)[0] == 200
        assert call(server, "/v2/repository/index", {}, forwarded)[0] == 403


def listens_here_unless_told():
    """Without --host all three listeners are on loopback, whoever starts the program."""
    def places(*options):
        words = [TRIREME, "serve", "--model-repository", str(repository), "--http-port", "0", "--grpc-port", "0",
                 "--metrics-port", "0", *options]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                if "serve ready" in line:
                    break
            sockets = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
            rows = [row.split() for row in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
            return sorted(row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets)
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
    assert places() == ["0100007F"] * 3, places()
    assert places("--host", "0.0.0.0") == ["00000000"] * 3
    assert places("--grpc-address", "0.0.0.0", "--metrics-address", "127.0.0.2") == ["00000000", "0100007F", "0200007F"]


def pages_of_others():
    """What a browser sends for a foreign page, or for one whose name was given this address, does nothing."""
    options = ("--model-control", "explicit", "--load-model", "*", "--host-name", "*.example.org")
    with Server(repository, *options) as server:
        own = {"Origin": server.url, "Content-Type": "application/json"}
        body = {"log_info": False}
        for bad, code in (({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
                          ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, 403),
                          ({**own, "Content-Type": "text/plain"}, 415), ({"Sec-Fetch-Site": "cross-site"}, 403),
                          ({"Host": "rebound.example", "Origin": "http://rebound.example",
                            "Content-Type": "application/json"}, 403)):
            for path in ("/v2/logging", "/v2/trace/setting", "/v2/repository/models/simple/unload"):
                assert call(server, path, body, bad)[0] == code, (path, bad)
        infer = {"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
                            for i in (0, 1)]}
        assert call(server, "/v2/models/simple/infer", infer, {"Origin": "http://evil.example"})[0] == 403
        assert call(server, "/v2/models/simple/infer", infer, own)[0] == 200
        assert call(server, "/v2/models/simple/config", headers={"Host": "rebound.example:80"})[0] == 403
        for host in ("a.example.org", "localhost", "trireme:8000", "[::1]:8000", "10.0.0.1"):
            assert call(server, "/v2/models/simple/config", headers={"Host": host})[0] == 200, host
        assert call(server, "/v2/health/live", headers={"Host": "rebound.example"})[0] == 200
        assert call(server, "/v2/logging", {"log_warning": True}, own)[0] == 200  # the server's own page
        answer = call(server, "/v2/logging", headers={"Origin": "http://evil.example"})
        assert json.loads(answer[2])["log_info"] and not any("access-control" in name.lower() for name in answer[1])


def tls_as_asked_for():
    """Who asks for TLS without a certificate gets no plain text."""
    for words in (["--grpc-use-ssl", "true"], ["--grpc-use-ssl-mutual=true"]):
        command = [TRIREME, "serve", "--model-repository", str(repository), "--http-port", "0", "--grpc-port", "0"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "--grpc-server-cert" in done.stderr and "listening" not in done.stderr, done


def errors_are_short():
    """What a client sent comes back in an error in a few words, over both protocols."""
    long = "x" * 4_000_000
    with Server(repository, "--model-control", "explicit", "--load-model", "*") as server:
        for path, body in (("/v2/models/simple/infer", {"inputs": [{"name": long}]}),
                           ("/v2/models/simple/infer", {"inputs": [], "parameters": {"triton_" + long: 1}}),
                           ("/v2/logging", {long: True}), ("/v2/trace/setting", {long: "1"}),
                           ("/v2/repository/models/simple/load", {"parameters": {long: 1}}),
                           ("/v2/repository/models/simple/load", {"parameters": {"config": long}}),
                           ("/v2/models/simple/generate", {long: {}})):
            status, _, answer = call(server, path, body)
            assert status >= 400 and 10 < len(answer) < 2000, (path, len(answer))
        c = triton.InferenceServerClient(server.grpc_address)
        for run in (lambda: c.update_log_settings({"x" * 500_000: True}), lambda: c.load_model("simple", config=long),
                    lambda: c.get_model_config("x" * 500_000)):
            try:
                run()
                raise AssertionError("the call succeeded")
            except InferenceServerException as error:
                assert len(str(error)) < 2000, len(str(error))
        assert max(map(len, server.log)) < 6000


def files_of_a_killed_server_go():
    """Overrides' files lie in a directory of their own; the next start removes what a killed server left."""
    scratch = repository.parent / (repository.name + "-scratch")
    stale, used, other = (scratch / name for name in ("trireme-load-aBc123", "trireme-load-xyZ789", "trireme-loads"))
    for folder in (stale, used, other):
        (folder / "1").mkdir(parents=True)
        (folder / "1/model.onnx").write_bytes(b"left")
    holder = os.open(used, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)  # as a server does that is loading
    model = (repository / "simple/1/model.onnx").read_bytes()
    try:
        with Server(repository, "--model-control", "explicit", environment={"TMPDIR": str(scratch)}) as server:
            assert sorted(scratch.iterdir()) == [used, other], list(scratch.iterdir())
            h = triton_http.InferenceServerClient(server.address)
            h.load_model("new", config="{}", files={"file:1/model.onnx": model})
            assert h.infer("new", inputs(triton_http)).as_numpy("OUTPUT0")[0, 0] == 2
            assert sorted(scratch.iterdir()) == [used, other], list(scratch.iterdir())
            assert any("stale_files_removed directories=1" in line for line in server.log)
    finally:
        os.close(holder)
        shutil.rmtree(scratch)


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
    run_cases([(case.__name__, case) for case in (
        categories, protocols_agree, keys_of_models, other_machines_need_a_key, listens_here_unless_told,
        pages_of_others, tls_as_asked_for, errors_are_short, files_of_a_killed_server_go, secrets_from_a_file,
        generate, generate_from_text)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
