# The real server with the real tritonclient over HTTP: every form of a request, every way it can end.
import json
import shutil
import socket
import struct
import threading
import urllib.error
import urllib.request

import numpy as np
import tritonclient.http as triton
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from _serving import Server, Skip, add_simple, add_slow, encoder_dir, link_tree, run_cases, temporary, until

TEXTS = ["A ship with three banks of oars.", "The cat sleeps in the sun.", "Galleys were rowed by many men.",
         "Stock prices fell sharply on Monday after the central bank's unexpected decision."]

repository = temporary()
add_simple(repository)
add_simple(repository, "simple_f32", TensorProto.FLOAT)
add_simple(repository, "simple_f16", TensorProto.FLOAT16)
add_slow(repository)
(repository / "broken" / "1").mkdir(parents=True)
(repository / "broken" / "1" / "model.onnx").write_bytes(b"\x08\x09not a model")
(repository / "refused").mkdir()
shutil.copytree(repository / "simple" / "1", repository / "refused" / "1")
(repository / "refused" / "config.pbtxt").write_text('model_operations { op_library_filename: "a.so" }\n')
shutil.copytree(repository / "simple" / "1", repository / "configured" / "3")
shutil.copytree(repository / "simple" / "1", repository / "configured" / "2")
(repository / "configured" / "config.pbtxt").write_text("""
name: "configured"  # two versions, the latest serves
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
        { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output { name: "OUTPUT0", data_type: TYPE_INT32, dims: 16, label_filename: "labels.txt" }
output { name: "OUTPUT1"; data_type: TYPE_INT32; dims: 16 }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "note" value { string_value: "two " 'parts' } }
""")
(repository / "configured" / "labels.txt").write_text("".join(f"label{i}\n" for i in range(16)))
try:
    link_tree(encoder_dir(), repository / "minilm")
    has_encoder = True
except Skip:
    has_encoder = False
server = Server(repository, "--threads", "2")


def client(**options):
    return triton.InferenceServerClient(server.address, **options)


def simple_inputs(rows=1, dtype=np.int32, datatype="INT32", binary=True, seed=0):
    values = np.random.default_rng(seed).integers(-100, 100, (2, rows, 16)).astype(dtype)
    inputs = []
    for i in (0, 1):
        inputs.append(triton.InferInput(f"INPUT{i}", [rows, 16], datatype))
        inputs[i].set_data_from_numpy(values[i], binary_data=binary)
    return values, inputs


def check_simple(name, result, values):
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values[0] + values[1], err_msg=name)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), values[0] - values[1], err_msg=name)


def post(path, body, headers=None):
    """Status, headers, body of a raw POST."""
    request = urllib.request.Request(server.url + path, body, headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def refused(name, fragment, call, status=None):
    try:
        call()
    except InferenceServerException as error:
        assert fragment in str(error), f"{fragment!r} is not in {error}"
        assert status is None or str(status) in str(error.status()), error.status()
        return
    raise AssertionError("the call succeeded")


def health_and_metadata():
    c = client()
    assert c.is_server_live() and c.is_server_ready() and c.is_model_ready("simple")
    assert not c.is_model_ready("broken")
    assert "binary_tensor_data" in c.get_server_metadata()["extensions"]
    meta = c.get_model_metadata("simple")
    assert meta["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}, meta
    assert c.get_model_metadata("configured")["versions"] == ["3"]
    config = c.get_model_config("configured")
    assert config["max_batch_size"] == 8 and config["instance_group"][0]["count"] == 2
    assert config["dynamic_batching"]["preferred_batch_size"] == [4, 8]
    assert config["parameters"]["note"]["string_value"] == "two parts"
    refused("unknown", "is not found", lambda: c.get_model_metadata("nothing"), 404)
    refused("version", "is not found", lambda: c.get_model_metadata("configured", "9"), 404)


def index():
    entries = {e["name"]: e for e in client().get_model_repository_index()}
    assert entries["simple"]["state"] == "READY"
    assert entries["broken"]["state"] == "UNAVAILABLE" and entries["broken"]["reason"]
    assert "model_operations" in entries["refused"]["reason"], entries["refused"]
    status, _, body = post("/v2/repository/index", b'{"ready":true}')
    assert status == 200 and "broken" not in {e["name"] for e in json.loads(body)}
    assert post("/v2/repository/index", b'{"ready":1}')[0] == 400


def every_form():
    for binary in (True, False):
        for rows in (1, 3, 8):
            values, inputs = simple_inputs(rows, binary=binary, seed=rows)
            outputs = [triton.InferRequestedOutput(f"OUTPUT{i}", binary_data=binary) for i in (0, 1)]
            check_simple("explicit", client().infer("simple", inputs, outputs=outputs), values)
            check_simple("all", client().infer("simple", inputs, request_id="77"), values)
    result = client().infer("configured", simple_inputs(2)[1], model_version="3", request_id="x-1")
    response = result.get_response()
    assert response["id"] == "x-1" and response["model_version"] == "3"


def float_types():
    values, inputs = simple_inputs(2, np.float32, "FP32", binary=False)
    values[0, 0, 0] = np.nan
    values[0, 0, 1] = np.inf
    inputs[0].set_data_from_numpy(values[0], binary_data=False)
    check_simple("nan", client().infer("simple_f32", inputs), values)
    values, inputs = simple_inputs(2, np.float16, "FP16")
    check_simple("half", client().infer("simple_f16", inputs), values)
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=False)]
    before = server.metrics()['nv_inference_exec_count{model="simple_f16",version="1"}']
    refused("half", "FP16", lambda: client().infer("simple_f16", inputs, outputs=outputs), 400)
    after = server.metrics()['nv_inference_exec_count{model="simple_f16",version="1"}']
    assert before == after, "an answer that cannot be written was computed"


def misaligned_binary():
    """JSON of every length modulo 8 before the blob, so that views and copies both happen."""
    values, _ = simple_inputs(1, seed=4)
    for pad in range(8):
        head = json.dumps({"id": "x" * pad, "inputs": [
            {"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32",
             "parameters": {"binary_data_size": 64}} for i in (0, 1)]}).encode()
        status, _, body = post("/v2/models/simple/infer", head + values.tobytes(),
                               {"Inference-Header-Content-Length": str(len(head))})
        assert status == 200, body
        outputs = {o["name"]: o["data"] for o in json.loads(body)["outputs"]}
        assert outputs["OUTPUT0"] == (values[0] + values[1])[0].tolist()


def compression():
    values, inputs = simple_inputs(8)
    for name in ("gzip", "deflate"):
        check_simple(name, client().infer("simple", inputs, request_compression_algorithm=name,
                                          response_compression_algorithm=name), values)


def classification():
    values, inputs = simple_inputs(2, seed=9)
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=False, class_count=3)]
    got = client().infer("configured", inputs, outputs=outputs).as_numpy("OUTPUT0")
    total = values[0] + values[1]
    for row in range(2):
        best = sorted(range(16), key=lambda i: (-total[row, i], i))[:3]
        assert [str(s) for s in got[row]] == [f"{total[row, i]}:{i}:label{i}" for i in best], got


def bad_requests():
    c = client()
    _, inputs = simple_inputs()
    refused("one", "expected 2 inputs but got 1 inputs for model", lambda: c.infer("simple", inputs[:1]), 400)
    wrong = triton.InferInput("INPUT0", [1, 8], "INT32")
    wrong.set_data_from_numpy(np.zeros((1, 8), np.int32))
    refused("shape", "unexpected shape for input", lambda: c.infer("simple", [wrong, inputs[1]]), 400)
    wrong = triton.InferInput("INPUT0", [1, 16], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 16), np.float32))
    refused("dtype", "data-type is 'FP32', but model 'simple' expects 'INT32'",
            lambda: c.infer("simple", [wrong, inputs[1]]), 400)
    refused("rows", "inference request batch-size must be <= 8",
            lambda: c.infer("configured", simple_inputs(9)[1]))
    refused("output", "unexpected inference output", lambda: c.infer(
        "simple", inputs, outputs=[triton.InferRequestedOutput("NOPE")]), 400)
    refused("model", "is not found", lambda: c.infer("nothing", inputs), 404)
    refused("broken", "has no available versions", lambda: c.infer("broken", inputs), 503)


def malformed_bodies():
    path = "/v2/models/simple/infer"
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32"}
    other = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [0] * 16}
    bad = [b"", b"[]", b"{", b"nonsense", b'{"inputs":3}', b'{"inputs":[]}', b"[" * 5000,
           {"inputs": [tensor, other]}, {"inputs": [tensor | {"data": [1] * 15}, other]},
           {"inputs": [tensor | {"data": [[1] * 8, [1] * 8]}, other]},
           {"inputs": [tensor | {"data": ["a"] * 16}, other]},
           {"inputs": [tensor | {"data": [1.5] * 16}, other]},
           {"inputs": [tensor | {"data": [2**40] * 16}, other]},
           {"inputs": [tensor | {"shape": [1, -16], "data": [1] * 16}, other]},
           {"inputs": [tensor | {"shape": [2**62, 2**62], "data": [1]}, other]},
           {"inputs": [tensor | {"datatype": "INT33", "data": [1] * 16}, other]},
           {"inputs": [tensor | {"data": [1] * 16}] * 2}, {"parameters": {"triton_x": 1}, "inputs": [other]},
           {"inputs": [tensor | {"parameters": {"binary_data_size": 64}}, other]}]
    for body in bad:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, headers, answer = post(path, body)
        assert status == 400 and "error" in json.loads(answer), (body[:80], status, answer)
    good = json.dumps({"inputs": [tensor | {"data": [1] * 16}, other]}).encode()
    for header in ("-1", "abc", str(len(good) + 1), "99999999999999999999"):
        assert post(path, good, {"Inference-Header-Content-Length": header})[0] == 400, header
    assert post(path, good + b"extra", {"Inference-Header-Content-Length": str(len(good))})[0] == 400
    # Data before its shape and type.
    late = json.dumps({"inputs": [{"data": [[1] * 16], **tensor}, other]}).encode()
    assert post(path, good)[0] == 200 and post(path, late)[0] == 200
    assert json.loads(post(path, late)[2])["outputs"] == json.loads(post(path, good)[2])["outputs"]
    assert post("/v2/models/simple/versions/1/infer", good)[0] == 200
    none = {"id": None, "parameters": None, "outputs": None}
    assert post(path, json.dumps(json.loads(good) | none).encode())[0] == 200
    assert b"missing required input(s) ['INPUT0','INPUT1']" in post(path, b'{"inputs":[]}')[2]
    assert b"Expected [-1,16], got [16]" in post(path, good.replace(b"[1, 16]", b"[16]"))[2]
    assert post("/v2/models/..%2f..%2fetc/infer", good)[0] == 404
    assert post("/v2/models/simple/nothing", good)[0] == 404 and post("/v2/nothing", b"")[0] == 404
    assert post("/v2/models/simple", b"")[0] == 405


def routes():
    """Spellings of a path, methods, and what is asked of shared memory that is not there."""
    def call(method, path):
        request = urllib.request.Request(server.url + path, None, {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers
    assert "model_stats" in json.loads(call("GET", "/v2/models/stats/")[1])
    assert call("GET", "/v2/models/simple/")[0] == 200 and call("GET", "/v2/models/simple/ready/")[0] == 200
    for path in ("/v2/models/simple/versions/", "/v2/models/simple/versions//ready", "/v2/models//ready"):
        assert call("GET", path)[0] == 404, path
    for method, path, allowed in (("POST", "/metrics", "GET"), ("POST", "/", "GET"), ("PUT", "/v2", "GET"),
                                  ("GET", "/v2/models/simple/infer/", "POST"),
                                  ("PUT", "/v2/cudasharedmemory/status", "GET")):
        status, _, headers = call(method, path)
        assert status == 405 and headers["Allow"] == allowed, (method, path, status)
    assert call("POST", "/v2/cudasharedmemory/region/a/unregister")[0] == 200
    assert call("GET", "/v2/cudasharedmemory/region/a/status")[0] == 404
    status, body, _ = call("POST", "/v2/systemsharedmemory/region/a/register")
    assert status == 501 and b"--allow-client-shm" in body, body
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        s.sendall(b"GET http://x/v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
                  b"GET /v2/models/\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: s.recv(65536), b""))
        assert text.startswith(b"HTTP/1.1 200"), text
        assert "is not found" in json.loads(text.rpartition(b"\r\n\r\n")[2])["error"]  # JSON in spite of the name


def many_at_once():
    c = client(concurrency=16)
    sent = []
    for i in range(64):
        values, inputs = simple_inputs(1 + i % 3, seed=i)
        sent.append((values, c.async_infer("simple", inputs)))
    for values, handle in sent:
        check_simple("async", handle.get_result(), values)
    before = server.metrics()['nv_inference_exec_count{model="simple",version="1"}']
    assert before < server.metrics()['nv_inference_count{model="simple",version="1"}'], "nothing was batched"


def statistics():
    c = client()
    c.infer("simple_f32", simple_inputs(3, np.float32, "FP32")[1])
    stats = c.get_inference_statistics("simple_f32")["model_stats"][0]
    assert stats["inference_stats"]["success"]["count"] >= 1 and stats["inference_count"] >= 3
    assert any(b["batch_size"] == 3 for b in stats["batch_stats"])
    metrics = server.metrics()
    assert metrics['nv_inference_request_success{model="simple_f32",version="1"}'] >= 1
    assert metrics['nv_inference_request_failure{model="simple",version="1",reason="OTHER"}'] >= 1
    assert metrics["process_resident_memory_bytes"] > 1e6
    assert b"Trireme" in urllib.request.urlopen(server.url + "/").read()


def embed(c, texts, binary=True):
    text = triton.InferInput("text", [len(texts)], "BYTES")
    text.set_data_from_numpy(np.array([t.encode() for t in texts], dtype=object), binary_data=binary)
    outputs = [triton.InferRequestedOutput("sentence_embedding", binary_data=binary)]
    return c.infer("minilm", [text], outputs=outputs).as_numpy("sentence_embedding")


def texts():
    if not has_encoder:
        raise Skip("the encoder's files are not installed (./dev setup)")
    c = client()
    together = embed(c, TEXTS)
    assert together.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    assert together[0] @ together[2] > together[0] @ together[1]
    # A text's embedding is the same bits alone, beside others, and through JSON.
    for i, text in enumerate(TEXTS):
        np.testing.assert_array_equal(embed(c, [text])[0], together[i])
    np.testing.assert_array_equal(embed(c, TEXTS, binary=False), together)
    # Batched by the scheduler with other clients' texts.
    handles = []
    many = client(concurrency=16)
    for i in range(32):
        text = triton.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([TEXTS[i % 4].encode()], dtype=object))
        handles.append(many.async_infer("minilm", [text]))
    for i, handle in enumerate(handles):
        np.testing.assert_array_equal(handle.get_result().as_numpy("sentence_embedding")[0], together[i % 4])


def tokens():
    if not has_encoder:
        raise Skip("the encoder's files are not installed (./dev setup)")
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(repository / "minilm" / "tokenizer.json"))
    tokenizer.no_padding()
    ids = np.array([tokenizer.encode(TEXTS[0]).ids], np.int64)
    inputs = [triton.InferInput(n, ids.shape, "INT64") for n in ("input_ids", "attention_mask")]
    inputs[0].set_data_from_numpy(ids)
    inputs[1].set_data_from_numpy(np.ones_like(ids))
    c = client()
    got = c.infer("minilm", inputs).as_numpy("sentence_embedding")
    np.testing.assert_array_equal(got, embed(c, TEXTS[:1]))
    inputs[0].set_data_from_numpy(ids + 10**6)
    refused("id", "vocabulary", lambda: c.infer("minilm", inputs), 400)
    refused("both", "expected 2 inputs", lambda: c.infer("minilm", inputs[:1]), 400)
    empty = triton.InferInput("text", [1], "BYTES")
    empty.set_data_from_numpy(np.array([b""], dtype=object))
    assert np.isfinite(c.infer("minilm", [empty]).as_numpy("sentence_embedding")).all()


def slow_body():
    head = json.dumps({"inputs": [{"name": "x0", "shape": [64, 512], "datatype": "FP32",
                                   "parameters": {"binary_data_size": 64 * 512 * 4}}],
                       "outputs": [{"name": "x220", "parameters": {"binary_data": True}}]}).encode()
    return head, np.ones((64, 512), np.float32).tobytes()


def send_slow(extra=None):
    head, blob = slow_body()
    if extra:
        head = json.dumps(json.loads(head) | extra).encode()
    return post("/v2/models/slow/infer", head + blob, {"Inference-Header-Content-Length": str(len(head))})


def parallel(count, call):
    results = [None] * count
    threads = [threading.Thread(target=lambda i=i: results.__setitem__(i, call())) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def full_queue_and_deadlines():
    global server
    main = server
    with Server(repository, "--max-queue", "2", "--threads", "1", "--http-threads", "1") as small:
        server = small
        try:
            results = parallel(12, send_slow)
            codes = sorted(r[0] for r in results)
            assert codes.count(200) >= 2 and codes.count(503) >= 1 and set(codes) == {200, 503}, codes
            for status, headers, body in results:
                if status == 503:
                    assert "Exceeds maximum queue size" in json.loads(body)["error"]
                    assert "Retry-After" in headers, headers
            key = 'nv_inference_request_failure{model="slow",version="1",reason="REJECTED"}'
            assert small.metrics()[key] == codes.count(503)
            # One runs, one waits behind it past its deadline of a millisecond.
            results = parallel(3, lambda: send_slow({"parameters": {"timeout": 1000}}))
            late = [r for r in results if r[0] == 503]
            assert late and all("Request timeout expired" in json.loads(r[2])["error"] or "Exceeds" in
                                json.loads(r[2])["error"] for r in late), results
        finally:
            server = main
        assert small.stop() == 0


def leaving_client():
    global server
    main = server
    with Server(repository, "--threads", "1") as own:
        server = own
        try:
            head, blob = slow_body()
            request = ("POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\n"
                       f"Content-Length: {len(head) + len(blob)}\r\n"
                       f"Inference-Header-Content-Length: {len(head)}\r\n\r\n").encode() + head + blob
            sockets = []
            for _ in range(12):
                s = socket.create_connection(("127.0.0.1", own.port))
                s.sendall(request)
                sockets.append(s)
            pending = 'nv_inference_pending_request_count{model="slow",version="1"}'
            # A reset would throw away what the server has not read yet.
            until(lambda: own.metrics()[pending] >= 4, "the requests did not arrive")
            for s in sockets:  # resets, so that the server sees it at once
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
            assert send_slow()[0] == 200
            metrics = own.metrics()
            key = 'nv_inference_request_failure{model="slow",version="1",reason="CANCELED"}'
            assert metrics[key] >= 1, metrics[key]
            assert metrics['nv_inference_exec_count{model="slow",version="1"}'] < 13
        finally:
            server = main


def drain_under_load():
    """Clients hammer the server while SIGTERM comes: every request that was accepted is answered with 200."""
    with Server(repository, "--threads", "1") as own:
        answers, errors, stop = [], [], threading.Event()

        def hammer(seed):
            values, inputs = simple_inputs(2, seed=seed)
            c = triton.InferenceServerClient(own.address)
            while not stop.is_set():
                try:
                    check_simple("drain", c.infer("simple", inputs), values)
                    answers.append(1)
                except InferenceServerException as error:
                    errors.append(str(error))
                    return
                except OSError as error:  # the listening socket is closed: nothing was accepted
                    if not isinstance(error, ConnectionRefusedError):
                        errors.append(repr(error))
                    return

        threads = [threading.Thread(target=hammer, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        until(lambda: len(answers) > 100 or errors)
        code = own.stop()
        stop.set()
        for t in threads:
            t.join()
        assert code == 0, code
        assert not errors, errors[:3]
        log = "".join(own.log)
        assert "draining" in log and "answered_all=yes" in log, log


def not_a_repository():
    import subprocess
    from _serving import TRIREME
    done = subprocess.run([TRIREME, "serve", "--model-repository", "/nonexistent", "--http-port", "0",
                           "--grpc-port", "0"],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and "no model repository" in done.stderr, done


CASES = [health_and_metadata, index, every_form, float_types, misaligned_binary, compression, classification,
         bad_requests, malformed_bodies, routes, many_at_once, statistics, texts, tokens, full_queue_and_deadlines,
         leaving_client, drain_under_load, not_a_repository]
try:
    run_cases([(case.__name__, case) for case in CASES])
finally:
    if server.process.poll() is None:
        server.stop()
    shutil.rmtree(repository, ignore_errors=True)
