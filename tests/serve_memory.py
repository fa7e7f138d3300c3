# One memory budget: requests that cost their sender little and the server much are refused or answered in bounded
# memory, and others are served on. Each attack runs twice: in a real control group of 1 GiB, where a server that takes
# more is killed as a pod would be, and against a bound on the most memory that was resident.
# tier: all
# timeout: 600
import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from _serving import Server, Skip, add_simple, run_cases, save, temporary, until, value

MIB = 2**20
GROUP_BYTES, LIMIT_BYTES = 1024 * MIB, 600 * MIB
# What is not counted: code, stacks, what the allocator keeps, words; and a sixteenth of the limit, which small pieces
# may take beyond it. 95 MiB were seen, 38 of them that sixteenth.
SLACK_BYTES = 160 * MIB
work = temporary()
repository = work / "models"
INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def add(name, nodes, inputs, outputs, constants=(), config="max_batch_size: 0\n"):
    save(nodes, inputs, outputs, repository / name / "1" / "model.onnx",
         [numpy_helper.from_array(v, n) for n, v in constants])
    (repository / name / "config.pbtxt").write_text(config)


def add_models():
    """Models whose results are as large as a request's numbers say."""
    add_simple(repository)
    save([helper.make_node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["batch", "n"])],
         [value("y", FLOAT, ["batch", "n"])], repository / "vector" / "1" / "model.onnx")
    out = [value("y", FLOAT, None)]
    one = ("one", np.ones(1, np.float32))
    add("zeros", [helper.make_node("ConstantOfShape", ["n"], ["y"])], [value("n", INT, [1])], out)
    add("expand", [helper.make_node("Expand", ["one", "n"], ["y"])], [value("n", INT, [1])], out, [one])
    add("tile", [helper.make_node("Tile", ["one", "n"], ["y"])], [value("n", INT, [1])], out, [one])
    add("pad", [helper.make_node("Pad", ["one", "pads"], ["y"]),
                helper.make_node("Concat", ["zero", "n"], ["pads"], axis=0)][::-1], [value("n", INT, [1])], out,
        [one, ("zero", np.zeros(1, np.int64))])
    add("range", [helper.make_node("Squeeze", ["n"], ["limit"]),
                  helper.make_node("Range", ["zero", "limit", "step"], ["i"]),
                  helper.make_node("Cast", ["i"], ["y"], to=FLOAT)], [value("n", INT, [1])], out,
        [("zero", np.array(0, np.int64)), ("step", np.array(1, np.int64))])
    add("one_hot", [helper.make_node("OneHot", ["zero", "n", "values"], ["y"])], [value("n", INT, [1])], out,
        [("zero", np.zeros(1, np.int64)), ("values", np.array([0, 1], np.float32))])
    add("resize", [helper.make_node("Add", ["n", "least"], ["width"]),
                   helper.make_node("Concat", ["ones", "width"], ["sizes"], axis=0),
                   helper.make_node("Resize", ["image", "", "", "sizes"], ["y"], mode="nearest")],
        [value("n", INT, [1])], out,
        [("image", np.ones((1, 1, 4, 4), np.float32)), ("ones", np.array([1, 1, 4], np.int64)),
         ("least", np.ones(1, np.int64))])
    same = helper.make_node("Identity", ["state"], ["next"])
    add_loop("loop", [same, helper.make_node("Identity", ["block"], ["kept"])], True)
    add_loop("grow", [helper.make_node("Concat", ["state", "state"], ["next"], axis=0)], False)
    add_loop("spin", [same], False)


def add_loop(name, nodes, keeps):
    """Runs n rounds; what they keep, or the state that they carry, is as large as n says."""
    body = helper.make_graph(
        nodes + [helper.make_node("Identity", ["go"], ["on"])], "body",
        [value("i", INT, []), value("go", TensorProto.BOOL, []), value("state", FLOAT, None)],
        [value("on", TensorProto.BOOL, []), value("next", FLOAT, None),
         *([value("kept", FLOAT, [16384])] if keeps else [])],
        [numpy_helper.from_array(np.ones(16384, np.float32), "block")])
    results = ["last", "y"] if keeps else ["y"]
    add(name, [helper.make_node("Squeeze", ["n"], ["rounds"]),
               helper.make_node("Loop", ["rounds", "", "one"], results, body=body)],
        [value("n", INT, [1])], [value("y", FLOAT, None)], [("one", np.ones(1, np.float32))],
        f'max_batch_size: 0 output {{ name: "y" data_type: TYPE_FP32 dims: {"[-1, 16384]" if keeps else "-1"} }}\n')


class Group:
    """A control group with a memory limit, of version 2 or 1; a skip where none can be made."""

    def __init__(self, limit_bytes):
        self.path = None
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            mount, limit = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers
                            else ("/sys/fs/cgroup", "memory.max"))
            for parent in (Path(mount + own), Path(mount)):
                path = parent / f"trireme-{os.getpid()}-{time.monotonic_ns()}"
                with contextlib.suppress(OSError):
                    path.mkdir()
                    if (path / limit).exists():
                        (path / limit).write_text(str(limit_bytes))
                        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
                            with contextlib.suppress(OSError):
                                if (path / swap).exists():
                                    (path / swap).write_text("0" if swap.endswith("max") else str(limit_bytes))
                        self.path = path
                        return
                    path.rmdir()
        raise Skip("no control group with a memory limit can be made here")

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(100):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.05)


def peak_bytes(server):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def is_alive(server):
    code = server.process.poll()
    how = "the server was killed" if code == -signal.SIGKILL else "the server has ended"
    assert code is None, (how, code, server.log[-4:])


def post(server, model, body, headers=None, timeout=60):
    request = urllib.request.Request(f"{server.url}/v2/models/{model}/infer", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, repr(error).encode()


def infer_body(name, kind, shape, data):
    return json.dumps({"inputs": [{"name": name, "shape": shape, "datatype": kind, "data": data}],
                       "parameters": {"binary_data_output": True}}).encode()


def works(server, limit_s=100):
    """One small request is answered, before long: memory that others held comes back."""
    body = json.dumps({"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
                                  for i in (0, 1)]}).encode()
    end = time.monotonic() + limit_s
    while True:
        code, text = post(server, "simple", body)
        if code == 200:
            return
        is_alive(server)
        assert code == 429 and time.monotonic() < end, (code, text)
        time.sleep(0.2)


def empty_tensors(server):
    """84 bytes: no rows, or none of something else, of a quarter of a billion."""
    huge = 2**28
    for shape in ([0, huge], [huge, 0], [0, 0, huge], [1, 0, huge], [0, 2**55]):
        code, text = post(server, "vector", infer_body("x", "FP32", shape, []))
        assert code == 400, (shape, code, text)
        head = json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": "FP32",
                                       "parameters": {"binary_data_size": 0}}]}).encode()
        code, text = post(server, "vector", head, {"Inference-Header-Content-Length": str(len(head))})
        assert code == 400, (shape, code, text)
        client = triton_grpc.InferenceServerClient(server.grpc_address)
        x = triton_grpc.InferInput("x", shape, "FP32")
        x._raw_content = b""
        try:
            client.infer("vector", [x])
            raise AssertionError(("answered", shape))
        except InferenceServerException as error:
            assert "INVALID_ARGUMENT" in str(error.status()), error
        client.close()
    code, text = post(server, "vector", infer_body("x", "FP32", [0, 4], []))
    assert code == 400 and b">= 1" in text, (code, text)
    code, text = post(server, "vector", infer_body("x", "FP32", [1, 0], []))
    assert code == 200, (code, text)
    code, text = post(server, "zeros", infer_body("n", "INT64", [1], [0]))
    assert code == 200, (code, text)


def sizes_from_data(server):
    """Every operator whose result is as large as a number of the request: refused with its name before it is made."""
    for model in ("zeros", "expand", "tile", "pad", "range", "one_hot", "resize", "loop"):
        assert post(server, model, infer_body("n", "INT64", [1], [8]))[0] == 200, model
        for n in (2**28, 2**31 + 11, 2**34, 2**53, 2**62):
            code, text = post(server, model, infer_body("n", "INT64", [1], [n]))
            is_alive(server)
            assert code in (400, 429), (model, n, code, text[:500])
        works(server)
    for n in (20, 26, 28, 40, 60):
        code, text = post(server, "grow", infer_body("n", "INT64", [1], [n]))
        is_alive(server)
        assert code == (200 if n == 20 else code) and code in (200, 429), (n, code, text[:500])
    works(server)


def endless_loops(server):
    """2^60 rounds of nothing: the client hears of it, and the processor is free again."""
    for _ in range(50):  # quick ones are no promise: the next is not run where requests are read
        assert post(server, "spin", infer_body("n", "INT64", [1], [3]))[0] == 200
    code, text = post(server, "spin", infer_body("n", "INT64", [1], [2**60]))
    assert code == 400 and b"rounds" in text, (code, text)
    works(server)

    def is_idle():
        before = cpu_seconds(server)
        time.sleep(1)
        return cpu_seconds(server) - before < 0.3

    until(is_idle, "the loop goes on")


def cpu_seconds(server):
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raw_request(model, body, headers=""):
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def send_all(server, requests, connections, wait_s):
    """Sends the same bytes on so many connections, reads nothing for a while, then leaves."""
    kept = []
    for _ in range(connections):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(2)
        with contextlib.suppress(OSError):
            s.sendall(requests)
        kept.append(s)
        is_alive(server)
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        is_alive(server)
        code = urllib.request.urlopen(server.url + "/v2/health/live", timeout=60).status  # a busy machine is no fault
        assert code == 200, code
        time.sleep(0.1)
    for s in kept:
        s.close()
    is_alive(server)
    works(server)


def pipelining(server):
    """Small requests on one connection for large answers that nobody reads: reading from it stops."""
    request = raw_request("zeros", infer_body("n", "INT64", [1], [10_000_000]))
    send_all(server, request * 600, 1, 4)
    send_all(server, request * 64, 8, 4)
    # A client that reads gets them all.
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        small = raw_request("zeros", infer_body("n", "INT64", [1], [1_000_000]))
        threading.Thread(target=s.sendall, args=(small * 100,), daemon=True).start()
        got = s.makefile("rb")
        for _ in range(100):
            assert b" 200 " in got.readline()
            headers = dict(line.decode().strip().lower().split(": ", 1) for line in iter(got.readline, b"\r\n"))
            assert len(got.read(int(headers["content-length"]))) >= 4_000_000


def slow_readers(server):
    """Many connections, one large answer each, of which a little is read."""
    send_all(server, raw_request("zeros", infer_body("n", "INT64", [1], [10_000_000])), 60, 4)


def gzip_of_blanks(server):
    """64 KiB that would become 60 MiB, many at once; and a tensor that shrinks as far as is allowed."""
    text = infer_body("x", "FP32", [1, 4], [1, 2, 3, 4])
    coded = {"Content-Encoding": "gzip"}
    blanks = gzip.compress(b" " * (60 * MIB) + text, 9)
    assert post(server, "vector", blanks, coded)[0] == 413
    assert post(server, "vector", gzip.compress(b" " * (3 * MIB) + text, 9), coded)[0] == 200
    lines = "Content-Encoding: gzip\r\n"
    send_all(server, raw_request("vector", blanks, lines), 40, 2)
    send_all(server, raw_request("vector", blanks, lines) * 20, 4, 2)
    count = 15 * MIB
    head = json.dumps({"inputs": [{"name": "x", "shape": [1, count], "datatype": "FP32",
                                   "parameters": {"binary_data_size": 4 * count}}]}).encode()
    values = np.zeros(count // 64, "V256")
    values.view(np.uint8).reshape(-1, 256)[:, 0] = np.random.default_rng(7).integers(0, 256, len(values))
    tensor = gzip.compress(head + values.tobytes(), 1)
    lines += f"Inference-Header-Content-Length: {len(head)}\r\n"
    assert 4 * count < 128 * len(tensor), len(tensor)
    send_all(server, raw_request("vector", tensor, lines), 30, 4)


def bodies_that_stop(server):
    """Connections that announce 60 MB, send 20 and stop: the later ones are refused with a time to come back."""
    kept, open_ones = [], []
    for _ in range(50):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        kept.append(s)
        try:
            s.sendall(b"POST /v2/models/vector/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n" +
                      b"x" * (20 * 10**6))
        except OSError:
            continue  # reset: it answered while we were still sending
        s.setblocking(False)
        open_ones.append(s)
        is_alive(server)

    def refused():
        for s in list(open_ones):
            try:
                answer = s.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                answer = b""
            assert not answer or (answer.startswith(b"HTTP/1.1 429") and b"Retry-After" in answer), answer
            open_ones.remove(s)
        return len(kept) - len(open_ones)

    until(lambda: refused() > 5)
    for s in kept:
        s.close()
    works(server)


def many_small_bodies(server):
    """What is counted for a request goes back with it."""
    used = used_bytes(server)
    for _ in range(200):
        post(server, "vector", infer_body("x", "FP32", [1, 4], [1, 2, 3, 4]))
        post(server, "vector", infer_body("x", "FP32", [1, 4], [1, 2, 3]))
        post(server, "zeros", infer_body("n", "INT64", [1], [10_000]))
    assert used_bytes(server) - used < 2 * MIB, (used, used_bytes(server))


def used_bytes(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("trireme_memory_used_bytes"))


def in_group(attack, *options):
    """The limit is the group's: nothing tells the server of it."""
    def case():
        with Group(GROUP_BYTES) as group, Server(repository, *OPTIONS, *options, preexec=group.enter) as server:
            limit = server.metrics()["trireme_memory_limit_bytes"]
            assert limit == GROUP_BYTES // 5 * 4, limit
            attack(server)
            is_alive(server)
            assert server.stop() == 0
    return case


def by_peak(attack, *options):
    def case():
        with Server(repository, *OPTIONS, "--memory-limit", f"{LIMIT_BYTES // MIB}MiB", *options) as server:
            before = peak_bytes(server)
            attack(server)
            is_alive(server)
            most = before + LIMIT_BYTES + SLACK_BYTES
            peak = peak_bytes(server)
            print(f"{attack.__name__}: at most {peak / MIB:.0f} MiB resident, allowed {most / MIB:.0f}", flush=True)
            assert peak < most, (peak / MIB, most / MIB)
            assert server.stop() == 0
    return case


OPTIONS = ("--threads", "1", "--instance-timeout", "5s")
ATTACKS = (empty_tensors, sizes_from_data, endless_loops, pipelining, slow_readers, gzip_of_blanks, bodies_that_stop,
           many_small_bodies)
CASES = [(f"{attack.__name__}_{how.__name__}", how(attack)) for how in (in_group, by_peak) for attack in ATTACKS]
if __name__ == "__main__":
    try:
        add_models()
        wanted = os.environ.get("TRIREME_CASE", "")
        run_cases([(name, case) for name, case in CASES if wanted in name])
    finally:
        shutil.rmtree(work, ignore_errors=True)
