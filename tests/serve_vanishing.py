# Clients that go in the middle of a request, an answer or a stream, ten thousand of them, and clients that are slow on
# purpose, over HTTP, TLS and gRPC: memory and open files stay flat, nobody else waits.
# tier: all
# timeout: 300
import json
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2

from _serving import Server, add_simple, run_cases, save, temporary, until, value

work = temporary()
repository = work / "models"
add_simple(repository)
# [n] -> as many zeros; and the same as a stream of n answers.
for name in ("zeros", "stream"):
    save([helper.make_node("ConstantOfShape", ["n"], ["y"])], [value("n", TensorProto.INT64, [1])],
         [value("y", TensorProto.FLOAT, ["m"])], repository / name / "1" / "model.onnx")
(repository / "zeros" / "config.pbtxt").write_text("max_batch_size: 0\n")
(repository / "stream" / "config.pbtxt").write_text(
    'max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
    'output [{ name: "y" data_type: TYPE_FP32 dims: [ ] }]\n'
    'parameters { key: "stream_rows" value { string_value: "true" } }\n')
ROUNDS = int(os.environ.get("TRIREME_VANISHING", "10000"))


def tensors(module):
    inputs = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for x in inputs:
        x.set_data_from_numpy(np.ones((1, 16), np.int32))
    return inputs


def works(server, **options):
    client = triton.InferenceServerClient(server.address, **options)
    assert client.infer("simple", tensors(triton)).as_numpy("OUTPUT0")[0, 0] == 2
    client.close()


def http_request(path, body, cut=None):
    data = json.dumps(body).encode()
    text = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data
    return text if cut is None else text[:cut]


def numbers(name, data, kind):
    return {"name": name, "shape": [1, len(data)] if name != "n" else [1], "datatype": kind, "data": data}


SIMPLE = http_request("/v2/models/simple/infer", {"inputs": [numbers(f"INPUT{i}", [1] * 16, "INT32") for i in (0, 1)]})
LARGE, HUGE = (http_request("/v2/models/zeros/infer", {"inputs": [numbers("n", [count], "INT64")]})
               for count in (200_000, 6_000_000))
EVENTS = http_request("/v2/models/stream/generate_stream", {"n": [2000]})


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def field(name, text):
    """A header field as it is: without index, without Huffman's code."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(text),)) + text


def grpc_bytes(method, messages, window=65535):
    """A connection's bytes for one call; `window` is what the client takes of a stream."""
    head = b"".join(field(n, v) for n, v in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/inference.GRPCInferenceService/" + method),
        (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
    settings = struct.pack(">HI", 4, window)
    out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(1, 4, 1, head)
    for m in messages:
        data = m.SerializeToString()
        out += frame(0, 0, 1, b"\0" + struct.pack(">I", len(data)) + data)
    return out


def grpc_message(model, inputs):
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, kind, shape, data in inputs:
        message.inputs.add(name=name, datatype=kind, shape=shape)
        message.raw_input_contents.append(data)
    return message


ONES = np.ones(16, np.int32).tobytes()
CALL = grpc_message("simple", [(f"INPUT{i}", "INT32", [1, 16], ONES) for i in (0, 1)])
MANY = grpc_message("stream", [("n", "INT64", [1], np.array([2000]).tobytes())])
STREAM = grpc_bytes(b"ModelStreamInfer", [CALL] * 5)
ANSWERS = grpc_bytes(b"ModelStreamInfer", [MANY], 2**20)


def vanish(server, rng, kind):
    """One client; where it goes is drawn."""
    is_grpc = kind in ("stream", "answers", "half message")
    s = socket.create_connection(("127.0.0.1", server.grpc_port if is_grpc else server.port))
    s.settimeout(20)
    try:
        if kind == "body":
            s.sendall(SIMPLE[:rng.randrange(len(SIMPLE))])
        elif kind == "answer":
            s.sendall(LARGE)
            s.recv(rng.randint(1, 60_000))
        elif kind == "events":
            s.sendall(EVENTS)
            s.recv(rng.randint(1, 3000))
        elif kind == "pipeline":
            s.sendall(SIMPLE * rng.randint(1, 30))
        elif kind == "half message":
            s.sendall(STREAM[:rng.randint(30, len(STREAM))])
        else:
            s.sendall(STREAM if kind == "stream" else ANSWERS)
            s.recv(rng.randint(1, 2000))
        if rng.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    finally:
        s.close()


KINDS = ("body", "answer", "events", "pipeline", "stream", "answers", "half message")


def settled(server, limit_s=100):
    """Memory in MiB and open files once nothing waits any more."""
    end = time.monotonic() + limit_s
    while True:
        m = server.metrics()
        waiting = sum(v for k, v in m.items() if k.startswith("nv_inference_pending_request_count"))
        is_open = m["trireme_http_connections_open"] + m["trireme_grpc_connections_open"]
        if waiting == 0 and is_open <= 2:
            return m["process_resident_memory_bytes"] / 2**20, open_files(server)
        assert time.monotonic() < end, (waiting, is_open)
        time.sleep(0.1)


def ten_thousand():
    with Server(repository) as server:
        readings = []
        for part in range(10):
            def run(n, part=part):
                rng = random.Random(part * 100 + n)
                for number in range(ROUNDS // 40):
                    vanish(server, rng, KINDS[(number + n) % len(KINDS)])
            threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            works(server)
            readings.append(settled(server))
        print(f"{ROUNDS} clients vanished: MiB and open files " + ", ".join(f"{m:.0f} {f}" for m, f in readings))
        memory, files = zip(*readings)
        assert files[-1] <= files[1] + 2, readings
        assert memory[-1] < memory[3] + 16, readings
        m = server.metrics()
        assert m["trireme_http_clients_gone_total"] > ROUNDS / 100, m["trireme_http_clients_gone_total"]
        assert server.stop() == 0


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def certificate():
    key, pem = work / "key.pem", work / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(pem),
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    return key, pem


def is_closed(s):
    """Reads what there is; true once the other side has ended."""
    s.settimeout(0.01)
    try:
        while s.recv(65536):
            pass
        return True
    except (TimeoutError, ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        return True


def all_closed(clients):
    left = list(clients)

    def none_left():
        left[:] = [s for s in left if not is_closed(s)]
        return not left

    until(none_left, left)


def slow_over_tls():
    """Handshakes that stop half-way, heads, bodies and readers that crawl, on a secured listener with one thread."""
    key, pem = certificate()
    trust = ssl.create_default_context(cafile=str(pem))
    trust.check_hostname = False
    with Server(repository, "--http-threads", "1", "--tls-certificate", str(pem), "--tls-key", str(key),
                "--max-connections", "2000", ready=False) as server:
        def connect():
            return socket.create_connection(("127.0.0.1", server.port))

        def secured():
            return trust.wrap_socket(connect())

        def answered():
            s = secured()
            s.settimeout(60)
            s.sendall(SIMPLE)
            text = s.recv(65536)
            s.close()
            return text.startswith(b"HTTP/1.1 200")

        until(answered)
        files = open_files(server)
        shaking = [connect() for _ in range(100)]
        for s in shaking:  # the first bytes of a client's hello
            s.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 20)
        silent = [connect() for _ in range(50)]
        heads = [secured() for _ in range(100)]
        bodies = [secured() for _ in range(100)]
        readers = [secured() for _ in range(5)]
        for s in readers:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(HUGE)  # more than the system's buffers hold
        assert all(s.recv(15) == b"HTTP/1.1 200 OK" for s in readers)
        begun = time.monotonic()
        for n in range(20):
            if time.monotonic() - begun > 5:  # a busy machine: after ten seconds their time is over
                break
            for s in heads:
                s.sendall(SIMPLE[n:n + 1])
            for s in bodies:
                s.sendall(SIMPLE[:100] if n == 0 else b" ")
            assert answered(), "a well-behaved client waits"
            time.sleep(0.1)
        all_closed(heads)
        assert answered()
        all_closed(bodies)
        all_closed(shaking + silent)
        # Readers see that they are cut off once they have read what the system holds: the server's side tells.
        until(lambda: open_files(server) <= files + 2, len(readers))
        assert answered()
        assert server.stop() == 0


def slow_over_grpc():
    """Connections that never say anything, stop within a frame, or take no answers: they end or wait alone."""
    with Server(repository, "--http-threads", "1") as server:
        def connect(data=b""):
            s = socket.create_connection(("127.0.0.1", server.grpc_port))
            s.sendall(data)
            return s

        def answered():
            client = triton_grpc.InferenceServerClient(server.grpc_address)
            client.infer("simple", tensors(triton_grpc), client_timeout=60)
            client.close()

        silent = [connect() for _ in range(100)] + [connect(STREAM[:n]) for n in range(1, 24)]
        crawling = [connect(STREAM[:60]) for _ in range(50)]
        lazy = [connect(grpc_bytes(b"ModelStreamInfer", [MANY] * 20, 0)) for _ in range(20)]
        begun = time.monotonic()
        for n in range(30):
            if time.monotonic() - begun > 5:  # a busy machine: before long their time is over
                break
            for s in crawling:
                s.sendall(STREAM[60 + n:61 + n])
            answered()
            time.sleep(0.1)
        all_closed(silent)
        resident = server.metrics()["process_resident_memory_bytes"] / 2**20
        assert resident < 1000, f"answers that nobody takes keep {resident:.0f} MiB"
        for s in crawling + lazy:
            s.close()
        settled(server)
        assert server.stop() == 0


CASES = (ten_thousand, slow_over_tls, slow_over_grpc)
if __name__ == "__main__":
    try:
        wanted = os.environ.get("TRIREME_CASE", "")
        run_cases([(case.__name__, case) for case in CASES if wanted in case.__name__])
    finally:
        shutil.rmtree(work, ignore_errors=True)
