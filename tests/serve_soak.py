# Random clients, good and bad, for a while, from a seed: nobody is lost, no worker dies, memory stays flat.
# tier: all
#
# The short form runs with the other tests. `python tests/serve_soak.py --minutes 30 --seed 7` is the long one; it
# reports what was done and how memory went, and fails by the same rules.
import argparse
import collections
import json
import random
import shutil
import socket
import struct
import threading
import time
import traceback
import urllib.error
import urllib.request

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from _serving import Server, Skip, add_simple, add_slow, encoder_dir, link_tree, run_cases, save, temporary, value

parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=0.25)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--clients", type=int, default=12)
arguments = parser.parse_args()

work = temporary()
repository = work / "models"


def make_models():
    add_simple(repository)
    add_simple(repository, "kept")
    (repository / "kept" / "config.pbtxt").write_text("max_batch_size: 8\nresponse_cache { enable: true }\n")
    add_slow(repository, "dense", 4)
    table = numpy_helper.from_array(np.arange(10, dtype=np.float32), "table")
    save([helper.make_node("Gather", ["table", "i"], ["y"])], [value("i", TensorProto.INT64, ["batch", 1])],
         [value("y", TensorProto.FLOAT, ["batch", 1])], repository / "gather" / "1" / "model.onnx", [table])
    add_simple(repository, "reloaded")
    try:
        link_tree(encoder_dir(), repository / "minilm")
    except Skip:
        pass


class Soak:
    """What every client shares: the server, the counts of what happened, and what must never happen."""

    def __init__(self, server):
        self.server, self.counts, self.wrong = server, collections.Counter(), []
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.has_text = (repository / "minilm").exists()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1


def tensors(module, rng, rows):
    values = [rng.integers(-50, 50, (rows, 16)).astype(np.int32) for _ in (0, 1)]
    inputs = [module.InferInput(f"INPUT{i}", [rows, 16], "INT32") for i in (0, 1)]
    for x, v in zip(inputs, values):
        x.set_data_from_numpy(v)
    return inputs, values


class Client:
    """One client with its own seed. Each method is a behaviour; an exception other than a refusal is a fault."""

    def __init__(self, soak, seed):
        self.soak, self.rng, self.np_rng = soak, random.Random(seed), np.random.default_rng(seed)
        self.http = triton.InferenceServerClient(soak.server.address, network_timeout=60, connection_timeout=60)
        self.grpc = triton_grpc.InferenceServerClient(soak.server.grpc_address)

    def infer(self):
        """A correct request over either protocol: the answer is checked."""
        is_http = self.rng.random() < 0.6
        module, client = (triton, self.http) if is_http else (triton_grpc, self.grpc)
        model = self.rng.choice(("simple", "kept", "reloaded"))
        inputs, (a, b) = tensors(module, self.np_rng, self.rng.randint(1, 8))
        result = client.infer(model, inputs, request_id="r")
        assert (result.as_numpy("OUTPUT0") == a + b).all() and (result.as_numpy("OUTPUT1") == a - b).all()

    def json_infer(self):
        data = [self.rng.randint(-9, 9) for _ in range(16)]
        body = {"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": data} for i in (0, 1)]}
        answer = json.loads(self.post("/v2/models/simple/infer", json.dumps(body).encode())[1])
        assert answer["outputs"][0]["data"] == [2 * x for x in data], answer

    def post(self, path, body, headers=None):
        request = urllib.request.Request(self.soak.server.url + path, body, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def text(self):
        if not self.soak.has_text:
            return
        words = " ".join(self.rng.choice(("oar", "hull", "bank", "sea")) for _ in range(self.rng.randint(1, 40)))
        body = json.dumps({"text_input": words}).encode()
        vector = json.loads(self.post("/v2/models/minilm/generate", body)[1])["sentence_embedding"]
        assert abs(sum(x * x for x in vector) - 1) < 1e-4

    def dense(self):
        x = triton.InferInput("x0", [64, 512], "FP32")
        x.set_data_from_numpy(np.ones((64, 512), np.float32))
        assert self.http.infer("dense", [x]).as_numpy("x4").shape == (64, 512)

    def refused(self):
        """Wrong names, shapes, indices that a kernel throws for: an error that names it."""
        kind = self.rng.randrange(3)
        try:
            if kind == 0:
                self.http.infer("simple", tensors(triton, self.np_rng, 100)[0])
            elif kind == 1:
                self.grpc.infer("no_such_model", tensors(triton_grpc, self.np_rng, 1)[0])
            else:
                i = triton.InferInput("i", [1, 1], "INT64")
                i.set_data_from_numpy(np.array([[10_000]]))
                self.http.infer("gather", [i])
        except InferenceServerException:
            return
        raise AssertionError(f"a wrong request of kind {kind} was answered")

    def mutated(self):
        """A JSON body with bytes changed: 200 or 400, nothing else."""
        data = [1] * 16
        body = bytearray(json.dumps({"inputs": [
            {"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": data} for i in (0, 1)]}).encode())
        for _ in range(self.rng.randint(1, 6)):
            at = self.rng.randrange(len(body))
            body[at:at + self.rng.randint(0, 2)] = bytes(self.rng.randrange(256) for _ in range(self.rng.randint(0, 2)))
        status, _ = self.post("/v2/models/simple/infer", bytes(body), {"Content-Type": "application/json"})
        assert status in (200, 400), (status, bytes(body))

    def garbage(self):
        """Bytes that are no protocol, or a request cut anywhere, and then gone: reset, half-closed or silent."""
        port = self.rng.choice((self.soak.server.port, self.soak.server.grpc_port))
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.settimeout(30)
            head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"
            piece = head[:self.rng.randint(0, len(head))] if self.rng.random() < 0.5 else bytes(
                self.rng.randrange(256) for _ in range(self.rng.randint(1, 300)))
            try:
                s.sendall(piece)
                end = self.rng.randrange(3)
                if end == 0:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif end == 1:
                    s.shutdown(socket.SHUT_WR)
                    while s.recv(65536):
                        pass
            except OSError:
                pass

    def cancelled(self):
        inputs, _ = tensors(triton_grpc, self.np_rng, 1)
        self.grpc.async_infer("simple", inputs, lambda result, error: None).cancel()

    def deadline(self):
        """A deadline that may pass: an answer, or the call's own deadline."""
        inputs, (a, b) = tensors(triton_grpc, self.np_rng, 1)
        try:
            result = self.grpc.infer("simple", inputs, client_timeout=self.rng.choice((0.0005, 0.005, 0.05)))
            assert (result.as_numpy("OUTPUT0") == a + b).all()
        except InferenceServerException as error:
            text = str(error).lower()
            assert "deadline" in text or "timeout" in text, error

    def ask_around(self):
        path = self.rng.choice(("/v2", "/v2/health/ready", "/v2/models/simple", "/v2/models/stats", "/metrics", "/",
                                "/v2/models/simple/config", "/v2/models/none", "/v2/logging"))
        status = 200 if path != "/v2/models/none" else 404
        try:
            with urllib.request.urlopen(self.soak.server.url + path, timeout=60) as answer:
                answer.read()
                assert answer.status == status, (path, answer.status)
        except urllib.error.HTTPError as error:
            assert error.code == status, (path, error.code)

    def reload(self):
        """Loads one model again, or takes it out and in: others may meet it absent, then they are told so."""
        self.http.load_model("reloaded")

    WEIGHTS = ((infer, 50), (json_infer, 15), (text, 4), (dense, 4), (refused, 6), (mutated, 8), (garbage, 5),
               (cancelled, 4), (deadline, 4), (ask_around, 6), (reload, 0.2))

    def run(self):
        kinds, weights = zip(*self.WEIGHTS)
        try:
            while not self.soak.stop.is_set():
                kind = self.rng.choices(kinds, weights)[0]
                kind(self)
                self.soak.count(kind.__name__)
        except Exception:  # noqa: BLE001 whatever it is, it must not happen
            with self.soak.lock:
                self.soak.wrong.append(traceback.format_exc())
        finally:
            self.http.close()
            self.grpc.close()


def resident_mib(server):
    return server.metrics()["process_resident_memory_bytes"] / 2**20


def settled(server, limit_s=60):
    """Waits until nothing waits and no connection but ours is open: whatever still is would be lost work."""
    end = time.monotonic() + limit_s
    while True:
        m = server.metrics()
        waiting = sum(v for k, v in m.items() if k.startswith("nv_inference_pending_request_count"))
        if waiting == 0 and m["trireme_http_connections_open"] <= 2:
            return m
        assert time.monotonic() < end, (waiting, m["trireme_http_connections_open"])
        time.sleep(0.2)


def soak():
    make_models()
    # A small cache is full soon: what it keeps is not mistaken for a leak.
    with Server(repository, "--model-control", "explicit", "--load-model", "*", "--cache-size", "2MiB") as server:
        work_now = Soak(server)
        clients = [Client(work_now, arguments.seed * 1000 + n) for n in range(arguments.clients)]
        threads = [threading.Thread(target=c.run) for c in clients]
        start = time.monotonic()
        for t in threads:
            t.start()
        length_s, resident = arguments.minutes * 60, []
        while time.monotonic() - start < length_s and not work_now.wrong:
            time.sleep(max(0.5, length_s / 60))
            resident.append(resident_mib(server))
            if arguments.minutes >= 1 and len(resident) % 6 == 0:
                print(f"{(time.monotonic() - start) / 60:5.1f} min: {sum(work_now.counts.values())} done, "
                      f"{resident[-1]:.1f} MiB", flush=True)
        work_now.stop.set()
        for t in threads:
            t.join(120)
            assert not t.is_alive(), "a client hangs: a request without an answer"
        assert not work_now.wrong, work_now.wrong[0]
        threads_before = server.metrics()["process_threads"]
        m = settled(server)
        took = time.monotonic() - start
        total = sum(work_now.counts.values())
        print(f"{total} actions in {took:.0f} s with seed {arguments.seed}: "
              + ", ".join(f"{n} {k}" for k, n in work_now.counts.most_common()))
        answered = sum(v for k, v in m.items() if k.startswith("nv_inference_request_success{"))
        failed = sum(v for k, v in m.items() if k.startswith("nv_inference_request_failure{"))
        print(f"the server answered {answered:.0f}, refused {failed:.0f}; resident MiB at quarters: "
              + ", ".join(f"{resident[int(q * (len(resident) - 1))]:.1f}" for q in (0, 0.25, 0.5, 0.75, 1)))
        # Memory: caches and buffers fill in the first part; after it the level stays.
        half = len(resident) // 2
        growth = np.median(resident[-max(1, half // 2):]) - np.median(resident[half:half + max(1, half // 2)])
        assert growth < 8, f"{growth:.1f} MiB in the last quarter: {resident}"
        for kind, _ in Client.WEIGHTS:
            assert arguments.minutes < 0.2 or kind.__name__ == "text" or work_now.counts[kind.__name__], kind
        # Every worker is there and does its work.
        check = Client(work_now, 5)
        for kind in (check.infer, check.json_infer, check.text, check.dense):
            for _ in range(8):
                kind()
        assert threads_before >= 5 and server.process.poll() is None
        assert server.stop() == 0, server.log[-3:]


try:
    run_cases([("soak", soak)])
finally:
    shutil.rmtree(work, ignore_errors=True)
