# What clients, operators and disks do wrong: the server answers whoever behaves, loses nobody, and goes on.
# tier: all
# timeout: 300
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from _serving import TRIREME, Server, Skip, add_simple, add_slow, free_port, run_cases, save, temporary, until, value

work = temporary()
repository = work / "models"
add_simple(repository)
BODY = json.dumps({"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
                              for i in (0, 1)]}).encode()
REQUEST = (b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
           b"Content-Length: %d\r\n\r\n" % len(BODY)) + BODY


def tensors(module, rows=1):
    inputs = [module.InferInput(f"INPUT{i}", [rows, 16], "INT32") for i in (0, 1)]
    for x in inputs:
        x.set_data_from_numpy(np.ones((rows, 16), np.int32))
    return inputs


def works(server):
    """A well-behaved client of each protocol gets its answer."""
    for module, address in ((triton, server.address), (triton_grpc, server.grpc_address)):
        client = module.InferenceServerClient(address)
        assert client.infer("simple", tensors(module)).as_numpy("OUTPUT0")[0, 0] == 2
        client.close()


def connect(port):
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(30)
    return s


def settle(server, what, limit_s=100):
    """Waits until a reading of the metrics holds; connections end a moment after their clients, and until then a server
    that is full refuses the reading as well."""
    end = time.monotonic() + limit_s
    while True:
        try:
            seen = server.metrics()
            if what(seen):
                return
        except OSError as error:  # of which HTTPError is one
            seen = error
        assert time.monotonic() < end, seen
        time.sleep(0.1)


def slow_clients():
    """Hundreds of clients that give a byte now and then hold nobody up, and are sent away when their time is over."""
    with Server(repository, "--http-threads", "1") as server:
        slow = [connect(server.port) for _ in range(300)]
        start = time.monotonic()
        at = 0
        while time.monotonic() - start < 4:
            for s in slow:
                s.sendall(REQUEST[at:at + 1])
            at += 1
            works(server)
            time.sleep(0.1)
        assert at < len(REQUEST)
        # The head's time is over 10 s after its first byte: a 408, then the end.
        for s in slow[:20]:
            answer = s.recv(4096)
            assert answer.startswith(b"HTTP/1.1 408"), answer
        assert time.monotonic() - start > 8, time.monotonic() - start
        settle(server, lambda m: m["trireme_http_connections_open"] < 5 and m["trireme_http_timeouts_total"] >= 300)
        for s in slow:
            s.close()
        # Slow readers: answers that nobody takes do not stop the others.
        lazy = connect(server.port)
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        try:
            for _ in range(20_000):
                lazy.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        except BlockingIOError:
            pass
        works(server)
        resident = server.metrics()["process_resident_memory_bytes"]
        assert resident < 500 * 2**20, f"answers to a client that does not read take {resident / 2**20:.0f} MiB"
        lazy.close()
        assert server.stop() == 0


def half_closed_clients():
    """A client that closes its sending side may have left, nobody can tell: each request still gets one answer."""
    with Server(repository) as server:
        for number in range(50):
            count = 1 + number % 5
            s = connect(server.port)
            s.sendall(REQUEST * count)
            s.shutdown(socket.SHUT_WR)
            text = b""
            while piece := s.recv(65536):
                text += piece
            good, left = text.count(b"HTTP/1.1 200 OK"), text.count(b"HTTP/1.1 503")
            assert good + left == count and good == text.count(b'"model_name":"simple"'), text[:300]
            s.close()
        s = connect(server.port)
        s.sendall(REQUEST[:-5])
        s.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in s.recv(65536)
        works(server)
        assert server.stop() == 0


def vanishing_clients():
    """Clients that reset their connection anywhere in a request or an answer leave nothing behind."""
    rng = random.Random(1)
    with Server(repository, "--batch-window", "20ms") as server:
        for number in range(600):
            s = connect(server.port if number % 3 else server.grpc_port)
            s.sendall(REQUEST[:rng.randint(0, len(REQUEST))] if number % 2 else REQUEST)
            if number % 5 == 0:
                time.sleep(0.002)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not an orderly end
            s.close()
        client = triton_grpc.InferenceServerClient(server.grpc_address)
        for _ in range(100):
            call = client.async_infer("simple", tensors(triton_grpc), lambda result, error: None)
            call.cancel()
        client.close()
        works(server)
        settle(server, lambda m: m["trireme_http_connections_open"] <= 2
               and m['nv_inference_pending_request_count{model="simple",version="1"}'] == 0)
        m = server.metrics()
        asked = m['nv_inference_request_success{model="simple",version="1"}'] + sum(
            v for k, v in m.items() if k.startswith("nv_inference_request_failure{"))
        assert asked >= 2, m
        assert server.stop() == 0


HOSTILE = {
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n": 400,
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n": 413,
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 30_000 + b"\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n": 431,
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n": (400, 414, 431),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100: 400,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": (400, 405, 505),
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n": (400, 505),
    b"\0" * 1000: 400,
    b"GET /\xff\xfe%zz%00 HTTP/1.1\r\nHost: x\r\n\r\n": (400, 404)}


def hostile_bytes():
    """Requests that no client sends by accident get their 4xx and the end of the connection."""
    with Server(repository) as server:
        for stream, wanted in HOSTILE.items():
            s = connect(server.port)
            try:
                s.sendall(stream)
            except OSError:
                pass  # refused while it was being written
            status = int(s.makefile("rb").readline().split()[1])
            assert status in (wanted if isinstance(wanted, tuple) else (wanted,)), (stream[:80], status)
            s.close()
        works(server)
        assert server.metrics()["trireme_http_malformed_total"] >= 6
        assert server.stop() == 0


def hostile_requests():
    """Well-formed HTTP with a body made to break the reader: always an error, never the end."""
    rng = random.Random(2)
    path = "/v2/models/simple/infer"
    huge = 2**62
    bodies = [b"", b"[]", b"nul", b"{" * 200, b"[" * 100_000, b'{"inputs":' * 90, b"\xff\xfe\xfd",
              b'{"inputs":[]}',
              b'{"inputs":[{"name":"INPUT0","shape":[-1,16],"datatype":"INT32","data":[1]}]}',
              *(json.dumps({"inputs": [{"name": name, "shape": shape, "datatype": kind, "data": data}]}).encode()
                for name, shape, kind, data in (
                    ("INPUT0", [huge, huge], "INT32", [1]), ("INPUT0", [1] * 5000, "INT32", [1]),
                    ("INPUT0", [1, 16], "FP16", [1]), ("\0\n", [1, 16], "INT32", [None] * 16)))]
    for _ in range(200):  # a good request with bytes changed, cut or doubled
        torn = bytearray(BODY)
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(torn))
            torn[at:at + rng.randint(0, 3)] = bytes(rng.randrange(256) for _ in range(rng.randint(0, 3)))
        bodies.append(bytes(torn))
    with Server(repository) as server:
        for body in bodies:
            headers = {"Content-Type": "application/json"}
            if rng.random() < 0.2:
                headers["Inference-Header-Content-Length"] = str(rng.choice((0, 1, len(body), len(body) + 1, 2**64)))
            try:
                status = urllib.request.urlopen(urllib.request.Request(server.url + path, body, headers),
                                                timeout=30).status
            except urllib.error.HTTPError as error:
                status = error.code
                assert "error" in json.loads(error.read()), body[:80]
            assert status in (200, 400), (status, body[:80])
        works(server)
        assert server.stop() == 0


def hostile_grpc():
    """Garbage where a message should be, unknown calls, foreign protocols: an error status each."""
    rng = random.Random(3)
    with Server(repository) as server:
        channel = grpc.insecure_channel(server.grpc_address)
        bytes_call = {"request_serializer": bytes, "response_deserializer": bytes}
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", **bytes_call)
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", **bytes_call)
        bad = 0
        for size in list(range(40)) + [1000, 100_000]:
            message = bytes(rng.randrange(256) for _ in range(size))
            try:
                infer(message, timeout=30)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), error
                bad += 1
        assert bad >= 40, bad
        try:
            answers = list(stream(iter([b"\xff" * 50]), timeout=30))
            assert len(answers) == 1, answers
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        try:
            channel.unary_unary("/inference.GRPCInferenceService/Nothing", **bytes_call)(b"", timeout=30)
            raise AssertionError("an unknown call was answered")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
        channel.close()
        for text in (REQUEST, b"\0" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 3000):
            s = connect(server.grpc_port)
            try:
                s.sendall(text)
                while s.recv(65536):
                    pass
            except OSError:
                pass
            s.close()
        works(server)
        assert server.stop() == 0


class Load:
    """Clients that ask without a pause; what became of each request is kept."""

    def __init__(self, server, clients=6, persistent=True):
        self.server, self.stop, self.persistent = server, threading.Event(), persistent
        self.answers, self.refused, self.lost = 0, [], []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]

    def _run(self, number):
        run = self._http if number % 2 == 0 else self._grpc
        while not self.stop.is_set():
            if not run() and not self.persistent:
                return
            time.sleep(0.01)

    def _count(self, kind, what=None):
        with self.lock:
            if kind == "answers":
                self.answers += 1
            else:
                getattr(self, kind).append(what)

    def _http(self):
        """One connection until it ends. A request that was sent and not answered is lost."""
        try:
            s = connect(self.server.port)
        except OSError as error:
            self._count("refused", repr(error))
            return False
        with s:
            reader = s.makefile("rb")
            while not self.stop.is_set():
                try:
                    s.sendall(REQUEST)
                    head = reader.readline()
                    length, closes = 0, False
                    while (line := reader.readline()) not in (b"\r\n", b""):
                        name, _, text = line.lower().partition(b":")
                        length = int(text) if name == b"content-length" else length
                        closes = closes or (name == b"connection" and b"close" in text)
                    body = reader.read(length)
                except OSError as error:
                    self._count("lost", repr(error))
                    return False
                if not head or len(body) != length:
                    self._count("lost", head)
                    return False
                status = int(head.split()[1])
                self._count("answers") if status == 200 else self._count("refused", status)
                if closes:
                    return False
        return True

    def _grpc(self):
        client = triton_grpc.InferenceServerClient(self.server.grpc_address)
        try:
            while not self.stop.is_set():
                try:
                    client.infer("simple", tensors(triton_grpc), client_timeout=30)
                    self._count("answers")
                except InferenceServerException as error:
                    text = str(error)
                    # Without a connection nothing was sent; what was sent is told UNAVAILABLE by the server.
                    self._count("refused" if "UNAVAILABLE" in text else "lost", text)
                    return False
            return True
        finally:
            client.close()

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()


def terminated_under_load():
    """SIGTERM while clients of both protocols ask: each request that was sent gets an answer; exit code 0."""
    for _ in range(3):
        with Server(repository, "--batch-window", "5ms") as server:
            with Load(server, clients=8, persistent=False) as load:
                while load.answers < 300:
                    time.sleep(0.01)
                assert server.stop() == 0, server.log[-5:]
            assert not load.lost, load.lost[:3]
            assert load.answers >= 300, load.answers


def killed_and_restarted():
    """SIGKILL and a start on the same ports: clients that try again go on, and none hangs."""
    ports = ["--http-port", str(free_port()), "--grpc-port", str(free_port())]
    server = Server(repository, *ports)
    with server, Load(server) as load:
        for _ in range(3):
            before = load.answers
            while load.answers < before + 200:
                time.sleep(0.01)
            server.process.kill()
            server.process.wait()
            again = Server(repository, *ports)
            server.process, server.log = again.process, again.log
            before = load.answers
            until(lambda: load.answers >= before + 200, (load.refused, load.lost))
        load.stop.set()
        for t in load.threads:
            t.join(60)
            assert not t.is_alive(), "a client hangs"
        assert server.stop() == 0


def full_disk_for_logs():
    """A log that cannot be written, or that nobody reads any more, stops nothing."""
    broken = repository / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"nonsense")
    try:
        for kind in ("full", "closed"):
            port, grpc_port = free_port(), free_port()
            words = [TRIREME, "serve", "--model-repository", str(repository), "--host", "127.0.0.1", "--http-port",
                     str(port), "--grpc-port", str(grpc_port), "--model-control", "poll", "--poll-interval", "50ms"]
            full = open("/dev/full", "w") if kind == "full" else None
            process = subprocess.Popen(words, stderr=full or subprocess.PIPE, stdout=subprocess.DEVNULL)
            server = Server.__new__(Server)
            server.process, server.port, server.grpc_port, server.log = process, port, grpc_port, []
            server.address, server.grpc_address = f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
            server.url = f"http://{server.address}"
            with server:
                server.wait_ready()
                if full is None:
                    process.stderr.close()
                for number in range(5):  # each change makes the log speak
                    (broken / "model.onnx").write_bytes(b"nonsense %d" % number)
                    time.sleep(0.2)
                works(server)
                process.send_signal(signal.SIGTERM)
                assert process.wait(40) == 0, process.returncode
    finally:
        shutil.rmtree(broken.parent)


def full_disk_for_traces():
    """Traces that find no room are dropped and counted; the file stays whole JSON and goes on when there is room."""
    with Server(repository, "--trace", "--trace-rate", "1", "--trace-file", "/dev/full") as server:
        for _ in range(50):
            works(server)
        settle(server, lambda m: m["trireme_traces_dropped_total"] >= 100)
        warnings = [line for line in server.log if "traces_lost" in line]
        assert 1 <= len(warnings) <= 3, warnings
        assert server.stop() == 0
    page = work / "trace.json"
    with Server(repository, "--trace", "--trace-rate", "1", "--trace-file", str(page)) as server:
        works(server)
        settle(server, lambda m: page.exists() and page.read_text().endswith("]\n"))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        while server.metrics()["trireme_traces_dropped_total"] < 20:
            works(server)
        before = len(json.loads(page.read_text()))
        assert page.stat().st_size <= 20_000 and before > 4, page.stat()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        works(server)
        assert server.stop() == 0
        assert len(json.loads(page.read_text())) > before


def broken_models():
    """Models that do not load, each in its own way, are listed with their reason; the others serve."""
    folder = work / "broken"
    add_simple(folder)
    good = (folder / "simple" / "1" / "model.onnx").read_bytes()

    def model(name, content=good, config=None, version="1"):
        path = folder / name / version
        path.mkdir(parents=True)
        if content is not None:
            (path / "model.onnx").write_bytes(content)
        if config is not None:
            (folder / name / "config.pbtxt").write_text(config)

    model("cut", good[:len(good) // 2])
    model("empty", b"")
    model("nothing", None)
    model("config", config="max_batch_size: oops")
    model("field", config="no_such_field: 1")
    model("shapes", config='max_batch_size: 4\ninput [{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 9 ] }]')
    model("version", version="not-a-number")
    unknown = folder / "operator" / "1" / "model.onnx"
    save([helper.make_node("NoSuchOperator", ["x"], ["y"])], [value("x", TensorProto.FLOAT, [1])],
         [value("y", TensorProto.FLOAT, [1])], unknown)
    names = {"cut", "empty", "nothing", "config", "field", "shapes", "version", "operator"}
    with Server(folder) as server:
        works(server)
        client = triton.InferenceServerClient(server.address)
        index = {e["name"]: e for e in client.get_model_repository_index()}
        assert index["simple"]["state"] == "READY", index
        for name in names:
            assert index[name]["state"] == "UNAVAILABLE" and index[name]["reason"], index[name]
            assert not client.is_model_ready(name)
            try:
                client.infer(name, tensors(triton))
                raise AssertionError(f"{name} answered")
            except InferenceServerException:
                pass
        works(server)
        assert server.stop() == 0
    shutil.rmtree(folder)


def throwing_kernels():
    """A kernel that throws fails the one request whose data it was; its batch mates get their answers."""
    table = numpy_helper.from_array(np.arange(10, dtype=np.float32), "table")
    save([helper.make_node("Gather", ["table", "i"], ["y"])], [value("i", TensorProto.INT64, ["batch", 1])],
         [value("y", TensorProto.FLOAT, ["batch", 1])], repository / "gather" / "1" / "model.onnx", [table])
    try:
        with Server(repository, "--batch-window", "20ms") as server:
            outcomes = {"good": 0, "bad": 0}
            lock = threading.Lock()

            def ask(seed):
                rng = random.Random(seed)
                client = triton.InferenceServerClient(server.address)
                for _ in range(60):
                    index = rng.choice((rng.randrange(10), rng.randrange(10), 10_000))
                    i = triton.InferInput("i", [1, 1], "INT64")
                    i.set_data_from_numpy(np.array([[index]]))
                    try:
                        assert client.infer("gather", [i]).as_numpy("y")[0, 0] == index < 10
                        kind = "good"
                    except InferenceServerException as error:
                        assert index == 10_000, error
                        kind = "bad"
                    with lock:
                        outcomes[kind] += 1

            threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert sum(outcomes.values()) == 480 and outcomes["bad"] > 80, outcomes
            m = server.metrics()
            assert m['nv_inference_request_failure{model="gather",version="1",reason="BACKEND"}'] == outcomes["bad"], m
            assert m['nv_inference_request_success{model="gather",version="1"}'] == outcomes["good"]
            works(server)
            assert server.stop() == 0
    finally:
        shutil.rmtree(repository / "gather")


IDLE = """
import resource, socket, sys
count, port = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = []
for n in range(count):
    s = socket.create_connection(("127.0.0.1", port))
    if n % 10 == 0:  # some have asked once
        s.sendall(b"GET /v2/health/live HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        s.recv(4096)
    kept.append(s)
print("open", flush=True)
sys.stdin.readline()
"""


def ten_thousand_idle_connections():
    """10,000 connections that ask nothing cost some kilobytes each; whoever asks is answered as before."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 10_600:
        raise Skip(f"only {hard} files may be open (ulimit -Hn)")
    with Server(repository) as server:
        works(server)
        before = server.metrics()["process_resident_memory_bytes"]
        idle = subprocess.Popen([sys.executable, "-c", IDLE, "10000", str(server.port)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        assert idle.stdout.readline() == "open\n"
        m = server.metrics()
        assert m["trireme_http_connections_open"] >= 10_000, m["trireme_http_connections_open"]
        each = (m["process_resident_memory_bytes"] - before) / 10_000
        print(f"10,000 idle connections: {each:.0f} bytes of the server's memory each", flush=True)
        assert each < 16_384, each
        client = triton.InferenceServerClient(server.address)
        took = []
        for _ in range(300):
            start = time.monotonic()
            client.infer("simple", tensors(triton))
            took.append(time.monotonic() - start)
        print(f"one client beside them: median {np.median(took) * 1e3:.2f} ms", flush=True)
        cpu = server.metrics()["process_cpu_seconds_total"]
        time.sleep(2)
        idle_cpu = (server.metrics()["process_cpu_seconds_total"] - cpu) / 2
        print(f"idle, the server uses {100 * idle_cpu:.1f} % of a core", flush=True)
        assert idle_cpu < 0.2, idle_cpu
        idle.stdin.write("\n")
        idle.stdin.close()
        idle.wait(60)
        settle(server, lambda m: m["trireme_http_connections_open"] < 10)
        works(server)
        assert server.stop() == 0


def more_connections_than_allowed():
    """Beyond --max-connections a client is told 503 at once; those inside stay."""
    with Server(repository, "--max-connections", "20") as server:
        inside = [connect(server.port) for _ in range(20)]
        for s in inside:
            s.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 200")
        outside = connect(server.port)
        assert outside.recv(4096).startswith(b"HTTP/1.1 503")
        inside[0].sendall(REQUEST)
        assert inside[0].recv(65536).startswith(b"HTTP/1.1 200")
        for s in [*inside, outside]:
            s.close()
        settle_end = time.monotonic() + 100
        while True:
            try:
                works(server)
                break
            except (OSError, InferenceServerException):
                assert time.monotonic() < settle_end
                time.sleep(0.1)
        assert server.metrics()["trireme_http_connections_refused_total"] >= 1
        # Few files: the server says so, and refuses instead of failing.
        assert server.stop() == 0
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    with Server(repository, "--max-connections", "1000") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (60, limit[1]))
        many = [connect(server.port) for _ in range(200)]
        end = time.monotonic() + 100
        refused = 0
        while refused == 0 and time.monotonic() < end:
            for s in many:
                s.setblocking(False)
                try:
                    refused += s.recv(4096).startswith(b"HTTP/1.1 503")
                except OSError:
                    pass
            time.sleep(0.05)
        assert refused > 0
        for s in many:
            s.close()
        settle(server, lambda m: m["trireme_http_connections_open"] < 10)
        works(server)
        assert server.stop() == 0


CASES = (slow_clients, half_closed_clients, vanishing_clients, hostile_bytes, hostile_requests, hostile_grpc,
         terminated_under_load, killed_and_restarted, full_disk_for_logs, full_disk_for_traces, broken_models,
         throwing_kernels, ten_thousand_idle_connections, more_connections_than_allowed)
if __name__ == "__main__":
    try:
        wanted = os.environ.get("TRIREME_CASE", "")
        run_cases([(case.__name__, case) for case in CASES if wanted in case.__name__])
    finally:
        shutil.rmtree(work, ignore_errors=True)
