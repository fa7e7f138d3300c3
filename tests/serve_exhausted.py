# What a server asks of the system and does not get: memory, threads, files, room on a disk. Requests get errors, the
# program goes on, and when there is enough again all is as before.
# tier: all
# timeout: 300
import base64
import http.client
import json
import mmap
import os
import random
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _serving import Server, Skip, add_simple, run_cases, save, temporary, until, value

work = temporary()
repository = work / "models"
add_simple(repository)
# [n] -> as many zeros: an answer as large as the request wants it.
save([helper.make_node("ConstantOfShape", ["n"], ["y"])], [value("n", TensorProto.INT64, [1])],
     [value("y", TensorProto.FLOAT, ["m"])], repository / "zeros" / "1" / "model.onnx")
(repository / "zeros" / "config.pbtxt").write_text("max_batch_size: 0\n")
EXPLICIT = ("--threads", "2", "--model-control", "explicit", "--load-model", "*")
MIB = 2**20


def tensors(module):
    inputs = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for x in inputs:
        x.set_data_from_numpy(np.ones((1, 16), np.int32))
    return inputs


def works(server):
    for module, address in ((triton, server.address), (triton_grpc, server.grpc_address)):
        client = module.InferenceServerClient(address)
        assert client.infer("simple", tensors(module)).as_numpy("OUTPUT0")[0, 0] == 2
        client.close()


def post(server, path, body=b"{}"):
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body), timeout=60) as answer:
            return answer.status, len(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, repr(error)


def zeros(server, count, is_binary=False):
    return post(server, "/v2/models/zeros/infer", json.dumps(
        {"inputs": [{"name": "n", "shape": [1], "datatype": "INT64", "data": [count]}],
         "parameters": {"binary_data_output": is_binary}}).encode())


def status(server, key):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def limit_memory(server, more_bytes):
    """The address space may grow by so much; None: as it likes."""
    now = status(server, "VmSize") * 1024
    soft = resource.RLIM_INFINITY if more_bytes is None else now + more_bytes
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


def is_alive(server):
    assert server.process.poll() is None, (server.process.returncode, server.log[-4:])


def answers_too_large():
    """An answer that finds no memory, computed or written, is an error of that request."""
    with Server(repository, *EXPLICIT) as server:
        assert zeros(server, 10)[0] == 200
        limit_memory(server, 300 * MIB)
        for count, is_binary in ((20_000_000, False), (60_000_000, False), (400_000_000, True), (10**12, True)):
            code, text = zeros(server, count, is_binary)
            is_alive(server)
            assert code in (0, 429, 500, 503), (count, code, text)
            assert zeros(server, 10)[0] == 200
            works(server)
        limit_memory(server, None)
        assert zeros(server, 1_000_000)[0] == 200
        assert server.stop() == 0


def requests_too_large():
    """Bodies and heads that find no memory end their own connection, or get an error; the others go on."""
    with Server(repository, *EXPLICIT) as server:
        works(server)
        limit_memory(server, 40 * MIB)
        kept = []
        for number in range(400):
            try:
                s = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                s.settimeout(0.5)
                kept.append(s)
                s.sendall(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
                s.sendall(b"x" * 200_000)
            except OSError:
                pass  # full, reset or refused
            if number % 50 == 0:
                is_alive(server)
        for _ in range(20):
            try:
                client = triton_grpc.InferenceServerClient(server.grpc_address)
                client.infer("simple", tensors(triton_grpc), client_timeout=5)
                client.close()
            except InferenceServerException:
                pass
        is_alive(server)
        for s in kept:
            s.close()
        limit_memory(server, None)
        until(lambda: open_connections(server) < 5)
        works(server)
        assert server.stop() == 0


def no_threads():
    """A model whose threads the system does not give fails to load; the one before it serves on."""
    with Server(repository, *EXPLICIT) as server:
        config = json.dumps({"parameters": {"config": json.dumps({"instance_group": [{"count": 40}]})}}).encode()
        for more in (3 * MIB, 20 * MIB, 60 * MIB):  # a thread's stack takes 8 MiB of addresses
            limit_memory(server, more)
            code, text = post(server, "/v2/repository/models/simple/load", config)
            is_alive(server)
            assert code != 200 and "serves on as it was" in text, (more, code, text)
            works(server)
        limit_memory(server, None)
        assert post(server, "/v2/repository/models/simple/load", config)[0] == 200
        works(server)
        assert server.stop() == 0


def open_files(server):
    return {int(n) for n in os.listdir(f"/proc/{server.process.pid}/fd")}


def no_files():
    """Without descriptors a load fails and clients are turned away, not left hanging; then all is as before."""
    with Server(repository, *EXPLICIT) as server:
        works(server)
        keep = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

        def asked(method, path, body=None):
            keep.request(method, path, body)
            answer = keep.getresponse()
            return answer.status, answer.read().decode()

        # Asked on the one connection that stays: no other one, whose descriptor would come free later, is left.
        until(lambda: "\ntrireme_http_connections_open 1\n" in asked("GET", "/metrics")[1])
        # What is open now and then (a file of /proc) is not taken: it would leave a descriptor when it is closed.
        taken = open_files(server)
        for _ in range(20):
            time.sleep(0.01)
            taken &= open_files(server)
        first_free = next(n for n in range(4096) if n not in taken)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (first_free, 4096))
        cpu = server_cpu(server)
        code, text = asked("POST", "/v2/repository/models/simple/load", "{}")
        assert code != 200 and "serves on as it was" in text, (code, text)
        turned_away = 0
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.settimeout(5)
                turned_away += s.recv(4096).startswith(b"HTTP/1.1 503")
        assert turned_away == 20, turned_away
        time.sleep(1)
        assert server_cpu(server) - cpu < 1, "the acceptor spins"
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        keep.close()
        works(server)
        assert post(server, "/v2/repository/models/simple/load")[0] == 200
        works(server)
        assert server.stop() == 0


def server_cpu(server):
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def few_files_from_the_start():
    """`ulimit -n 64`: the program says so, serves, and refuses what is too much."""
    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with Server(repository, "--trace", "--trace-rate", "1", "--trace-file", str(work / "few.json"),
                preexec=lower) as server:
        assert any("few_files_allowed" in line for line in server.log), server.log
        works(server)
        many = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
        time.sleep(0.3)
        is_alive(server)
        for s in many:
            s.close()
        until(lambda: open_connections(server) < 5)
        works(server)
        assert server.stop() == 0


def open_connections(server):
    """Many where the server has no descriptor for the question yet."""
    try:
        return server.metrics()["trireme_http_connections_open"]
    except OSError:
        return float("inf")


def full_disk():
    """Trace, log and shared temporary files on a disk of 1 MiB that fills up: no request notices."""
    disk = work / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True).returncode:
        raise Skip("no disk can be mounted here")
    try:
        log = open(disk / "log", "w")
        with Server(repository, *EXPLICIT, "--trace", "--trace-rate", "1", "--trace-file", str(disk / "trace.json"),
                    environment={"TMPDIR": str(disk)}) as server:
            client = triton.InferenceServerClient(server.address)
            while server.metrics()["trireme_traces_dropped_total"] < 100:
                client.infer("simple", tensors(triton))
            records = len(json.loads((disk / "trace.json").read_text()))
            assert records > 100, records
            # A model sent with the request is written to a temporary file.
            model = (repository / "simple" / "1" / "model.onnx").read_bytes()

            sent = {"parameters": {"config": "{}", "file:1/model.onnx":
                                   base64.b64encode(model + b"\0" * 2 * MIB).decode()}}
            code, text = post(server, "/v2/repository/models/simple/load", json.dumps(sent).encode())
            assert code != 200 and ("space" in text or "serves on" in text), (code, text)
            assert not list(disk.glob("trireme*")), list(disk.iterdir())
            works(server)
            assert server.stop() == 0
        log.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True)


class FailingMemory:
    """Makes one of so many calls of the program's malloc fail, while asked to."""

    def __init__(self):
        self.library, self.file = work / "fail_memory.so", work / "fail_memory"
        source = Path(__file__).resolve().parent / "_fail_memory.cc"
        compiler = shutil.which(os.environ.get("CXX", "c++"))
        if compiler is None:
            raise Skip("no C++ compiler")
        subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", str(source), "-o", str(self.library)],
                       check=True)
        self.file.write_bytes(b"\0" * 4096)
        self.environment = {"LD_PRELOAD": str(self.library), "FAIL_MEMORY": str(self.file)}
        with open(self.file, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), 4096)

    def set(self, every, least=0):
        self.page[0:8] = struct.pack("II", every, least)

    def failed(self):
        return struct.unpack("I", self.page[8:12])[0]

    def fail_while(self, server, clients, stop, phases):
        """Runs the threads through phases (one in so many, seconds); the server lives after each, the threads end."""
        for t in clients:
            t.start()
        for every, seconds in phases:
            self.set(every)
            time.sleep(seconds)
            self.set(0)
            is_alive(server)
            time.sleep(0.5)
        stop.set()
        for t in clients:
            t.join(60)
            assert not t.is_alive(), "a client hangs"


def add_chain(name):
    """An ensemble of `simple` on what `simple` gives: OUTPUT0 = 2 * INPUT0."""
    def step(maps):
        return 'step { model_name: "simple" model_version: -1 %s }' % " ".join(
            f'{side}_map {{ key: "{key}" value: "{to}" }}' for side, key, to in maps)

    def tensor(side, tensor_name):
        return f'{side} {{ name: "{tensor_name}" data_type: TYPE_INT32 dims: 16 }}\n'

    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        'platform: "ensemble" max_batch_size: 8\n' + tensor("input", "INPUT0") + tensor("input", "INPUT1") +
        tensor("output", "OUTPUT0") + "ensemble_scheduling {\n" +
        step([("input", "INPUT0", "INPUT0"), ("input", "INPUT1", "INPUT1"), ("output", "OUTPUT0", "sum"),
              ("output", "OUTPUT1", "difference")]) +
        step([("input", "INPUT0", "sum"), ("input", "INPUT1", "difference"), ("output", "OUTPUT0", "OUTPUT0")]) + "}\n")


def memory_that_fails_at_random():
    """While single allocations fail, clients of both protocols and those who look and load get answers, errors or a closed
    connection; no thread of the server ends and no instance is lost: afterwards everything works."""
    add_simple(repository, "kept")
    (repository / "kept" / "config.pbtxt").write_text("max_batch_size: 8\nresponse_cache { enable: true }\n")
    add_chain("chain")
    add_simple(repository, "spare")
    memory = FailingMemory()
    options = (*EXPLICIT, "--cache-size", "1MiB", "--batch-window", "1ms", "--instance-timeout", "20s")
    with Server(repository, *options, environment=memory.environment) as server:
        works(server)
        threads = status(server, "Threads")
        stop, counts, lock = threading.Event(), {}, threading.Lock()

        def count(what):
            with lock:
                counts[what] = counts.get(what, 0) + 1

        def ask(n):
            rng = random.Random(n)
            while not stop.is_set():
                module, address = ((triton, server.address), (triton_grpc, server.grpc_address))[n % 2]
                limits = {"network_timeout": 5, "connection_timeout": 5} if n % 2 == 0 else {}
                client = module.InferenceServerClient(address, **limits)
                try:
                    for _ in range(20):
                        more = {"client_timeout": 5} if n % 2 else {}
                        name = rng.choice(("simple", "kept", "chain"))
                        result = client.infer(name, tensors(module), **more)
                        assert result.as_numpy("OUTPUT0")[0, 0] == 2
                        count("answers")
                except InferenceServerException as error:
                    count("late" if "eadline" in str(error) or "timed out" in str(error) else "errors")
                except OSError as error:
                    count("late" if "timed out" in str(error) else "errors")
                except Exception as error:  # noqa: BLE001 gevent's own words for a closed connection
                    count("late" if "timed out" in str(error) else "errors")
                finally:
                    try:
                        client.close()
                    except Exception:  # noqa: BLE001
                        pass

        def look():
            while not stop.is_set():
                for path in ("/metrics", "/v2", "/v2/models/kept/stats", "/v2/models/kept/config", "/"):
                    try:
                        with urllib.request.urlopen(server.url + path, timeout=10) as answer:
                            answer.read()
                    except Exception:  # noqa: BLE001 an error, or closed, or cut off
                        pass
                post(server, "/v2/repository/index")
                post(server, f"/v2/repository/models/spare/{random.choice(('load', 'unload'))}")

        clients = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(8)]
        clients.append(threading.Thread(target=look, daemon=True))
        memory.fail_while(server, clients, stop, ((20_000, 3), (2_000, 6), (300, 6), (50, 4)))
        print(f"{memory.failed()} allocations failed: {counts}", flush=True)
        assert memory.failed() > 100 and counts["answers"] > 100, (memory.failed(), counts)
        assert counts.get("late", 0) <= counts["answers"] / 20, counts
        is_alive(server)
        assert post(server, "/v2/repository/models/spare/load")[0] == 200
        for _ in range(50):
            works(server)
        assert status(server, "Threads") >= threads, (status(server, "Threads"), threads)
        waiting = {k: v for k, v in server.metrics().items() if k.startswith("nv_inference_pending") and v}
        assert not waiting, waiting
        assert server.stop() == 0, server.log[-3:]
    for name in ("kept", "chain", "spare"):
        shutil.rmtree(repository / name)


def add_sum(name):
    """OUTPUT = state + INPUT, which is the next state; two slots, which no sequence loses for being idle."""
    save([helper.make_node("Add", ["INPUT", "state_in"], ["OUTPUT"]),
          helper.make_node("Identity", ["OUTPUT"], ["state_out"])],
         [value(v, TensorProto.INT32, ["batch", 1]) for v in ("INPUT", "state_in")],
         [value(v, TensorProto.INT32, ["batch", 1]) for v in ("OUTPUT", "state_out")],
         repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text("""max_batch_size: 1 instance_group { count: 2 }
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching { max_sequence_idle_microseconds: 3600000000 direct { }
  state { input_name: "state_in" output_name: "state_out" data_type: TYPE_INT32 dims: 1 } }""")


def sequences_while_memory_fails():
    """No slot is lost: while allocations fail, sequences get wrong answers never and errors at times; afterwards both
    slots serve."""
    add_sum("sum")
    memory = FailingMemory()
    with Server(repository, *EXPLICIT, "--instance-timeout", "20s", environment=memory.environment) as server:
        stop, counts, lock = threading.Event(), {"sums": 0, "errors": 0}, threading.Lock()

        def step(sequence, start=False, end=False):
            """The sum, or (code, text)."""
            sent = {"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [1]}],
                    "parameters": {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}}
            request = urllib.request.Request(server.url + "/v2/models/sum/infer", json.dumps(sent).encode())
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return json.loads(answer.read())["outputs"][0]["data"][0]
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode(errors="replace")
            except Exception as error:  # noqa: BLE001 closed, cut off or late
                return 0, repr(error)

        def ask(n):
            sequence = n
            while not stop.is_set():
                sequence += 10
                for k in range(1, 7):
                    got = step(sequence, start=k == 1, end=k == 6)
                    with lock:
                        counts["sums" if isinstance(got, int) else "errors"] += 1
                    if isinstance(got, int):
                        assert got == k, (sequence, k, got)
                    else:
                        break
                else:
                    continue
                for _ in range(1000):  # the server may think that it goes on
                    got = step(sequence, end=True)
                    if isinstance(got, int) or "START" in got[1]:
                        break

        wrong = []

        def client(n):
            try:
                ask(n)
            except AssertionError as error:
                wrong.append(error)

        clients = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(1, 7)]
        memory.fail_while(server, clients, stop, ((2_000, 4), (300, 6), (50, 4)))
        print(f"{memory.failed()} allocations failed: {counts}", flush=True)
        assert not wrong, wrong
        assert memory.failed() > 100 and counts["sums"] > 100 and counts["errors"] > 10, (memory.failed(), counts)
        for sequence in (1001, 1002):
            assert step(sequence, start=True) == 1
        for sequence in (1001, 1002):
            assert [step(sequence), step(sequence, end=True)] == [2, 3]
        waiting = {k: v for k, v in server.metrics().items() if k.startswith("nv_inference_pending") and v}
        assert not waiting, waiting
        assert server.stop() == 0, server.log[-3:]
    shutil.rmtree(repository / "sum")


CASES = (answers_too_large, requests_too_large, no_threads, no_files, few_files_from_the_start, full_disk,
         memory_that_fails_at_random, sequences_while_memory_fails)
if __name__ == "__main__":
    try:
        wanted = os.environ.get("TRIREME_CASE", "")
        run_cases([(case.__name__, case) for case in CASES if wanted in case.__name__])
    finally:
        shutil.rmtree(work, ignore_errors=True)
