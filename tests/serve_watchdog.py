# An instance that does not come back: its requests are answered, the model is not ready, others go on, it recovers.
# Loops that a request's values make endless: they end after their time, when their client leaves, and with the server.
import json
import os
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _serving import Server, add_simple, run_cases, save, temporary, until, value

repository = temporary()
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
add_simple(repository)


def add_loop(name, instances=1, more=""):
    """y = how often a loop ran: as often as the input says, be it for years."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["v", "one"], ["next"])], "body",
        [value("i", INT64, []), value("go", TensorProto.BOOL, []), value("v", INT64, [])],
        [value("go_on", TensorProto.BOOL, []), value("next", INT64, [])],
        [onnx.numpy_helper.from_array(np.array(1, np.int64), "one")])
    zero, true = np.array(0, np.int64), np.array(True)
    save([helper.make_node("Loop", ["trips", "true", "zero"], ["y"], body=body)], [value("trips", INT64, [])],
         [value("y", INT64, [])], repository / name / "1" / "model.onnx",
         [onnx.numpy_helper.from_array(zero, "zero"), onnx.numpy_helper.from_array(true, "true")])
    (repository / name / "config.pbtxt").write_text(
        f"max_batch_size: 0 instance_group {{ count: {instances} }} {more}\n")


def add_while(name):
    """y = x, changed by a loop that goes on while its condition holds: for ever where x is so large that x - 1 = x."""
    body = helper.make_graph(
        [helper.make_node("Sub", ["v", "one"], ["next"]), helper.make_node("Greater", ["next", "nought"], ["go_on"])],
        "body", [value("i", INT64, []), value("go", TensorProto.BOOL, []), value("v", FLOAT, [])],
        [value("go_on", TensorProto.BOOL, []), value("next", FLOAT, [])],
        [onnx.numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("one", 1), ("nought", 0))])
    save([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)], [value("x", FLOAT, [])],
         [value("y", FLOAT, [])], repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text("max_batch_size: 0\n")


def add_long(name, rounds=70):
    """A program of products [1024, 1024] that nothing can end half-way: some seconds."""
    nodes = [helper.make_node("Mul", ["w", "x"], ["t0"])]
    nodes += [helper.make_node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(rounds)]
    nodes += [helper.make_node("ReduceMax", [f"t{rounds}"], ["y"], keepdims=0)]
    eye = onnx.numpy_helper.from_array(np.eye(1024, dtype=np.float32), "w")
    save(nodes, [value("x", FLOAT, [1])], [value("y", FLOAT, [])], repository / name / "1" / "model.onnx", [eye])
    (repository / name / "config.pbtxt").write_text("max_batch_size: 0\n")


add_loop("loop")
add_loop("loop_twice", 2)
add_loop("loop_longer", more='parameters { key: "loop_timeout" value { string_value: "700ms" } }')
add_while("while")
add_long("long")


def loop_input(trips):
    x = triton.InferInput("trips", [], "INT64")
    x.set_data_from_numpy(np.array(trips, np.int64))
    return [x]


def long_input():
    x = triton.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.array([3], np.float32))
    return [x]


def simple_works(client):
    tensors = [triton.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for t in tensors:
        t.set_data_from_numpy(np.ones((1, 16), np.int32))
    np.testing.assert_array_equal(client.infer("simple", tensors).as_numpy("OUTPUT0"), np.full((1, 16), 2))


def status(server, path):
    try:
        return urllib.request.urlopen(server.url + path, timeout=10).status
    except urllib.error.HTTPError as e:
        return e.code


def infer(server, model, name, kind, number):
    """Status and text of an inference over HTTP."""
    body = {"inputs": [{"name": name, "datatype": kind, "shape": [], "data": [number]}]}
    try:
        with urllib.request.urlopen(f"{server.url}/v2/models/{model}/infer", json.dumps(body).encode(), 100) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def cpu_seconds(server):
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class EndlessPost:
    """A client that asks for 2^62 rounds over HTTP; here once these are run."""

    def __init__(self, server):
        before = cpu_seconds(server)
        body = json.dumps({"inputs": [{"name": "trips", "datatype": "INT64", "shape": [], "data": [2**62]}]})
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.sendall(f"POST /v2/models/loop/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                            f"{body}".encode())
        until(lambda: cpu_seconds(server) > before + 0.2)

    def leave(self):
        self.socket.close()


def fails(call):
    begin = time.monotonic()
    try:
        call()
    except InferenceServerException as error:
        return time.monotonic() - begin, str(error)
    raise AssertionError("the call succeeded")


def endless_loops():
    """Loops whose time nobody limits: the watchdog ends the run, so the instance is there again at once."""
    options = ("--threads", "1", "--instance-timeout", "700ms", "--loop-timeout", "0s")
    with Server(repository, *options) as server:
        c = triton.InferenceServerClient(server.grpc_address)
        for name in ("loop", "loop_twice"):
            assert c.infer(name, loop_input(1000)).as_numpy("y") == 1000
            took, error = fails(lambda: c.infer(name, loop_input(2**60)))
            assert "hangs" in error and took > 0.6, (took, error)
            simple_works(c)
            until(lambda: c.is_model_ready(name))
            assert c.infer(name, loop_input(1000)).as_numpy("y") == 1000
            key = f'trireme_instances_hung{{model="{name}",version="1"}}'
            until(lambda: server.metrics()[key] == 0)
        assert server.metrics()['nv_inference_request_failure{model="loop",version="1",reason="BACKEND"}'] == 1
        log = "".join(server.log)
        assert "instance_hangs" in log and "instance_recovered" in log
        assert server.stop() == 0


def attack(server, client, model, *feed):
    """Two requests for more rounds than there is time for; others are answered meanwhile. Gives what they took."""
    begin, answers = time.monotonic(), []

    def ask():
        answers.append(infer(server, model, *feed))

    hostile = [threading.Thread(target=ask) for _ in range(2)]
    for thread in hostile:
        thread.start()
    while any(thread.is_alive() for thread in hostile):
        simple_works(client)
        assert client.is_model_ready(model) and status(server, "/v2/health/ready") == 200
    assert all(code == 400 and "rounds" in text and "--loop-timeout" in text for code, text in answers), answers
    return time.monotonic() - begin


def loops_have_their_time():
    """However many rounds a request asks for: it is told that these are too many, nothing hangs, others go on."""
    with Server(repository, "--threads", "1", "--loop-timeout", "300ms") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        for model, name, kind, few, endless in (("loop", "trips", "INT64", 1000, 2**62),
                                                ("loop_longer", "trips", "INT64", 1000, 2**62),
                                                ("while", "x", "FP32", 5, 1e30)):
            took = attack(server, c, model, name, kind, endless)
            assert took > (1.3 if model == "loop_longer" else 0.5), (model, took)  # one after the other
            code, text = infer(server, model, name, kind, few)
            assert code == 200, text
        took, error = fails(lambda: c.infer("loop", loop_input(2**62)))
        assert "INVALID_ARGUMENT" in error, error
        assert server.metrics().get('trireme_instances_hung{model="loop",version="1"}', 0) == 0
        assert not any("instance_hangs" in line for line in server.log)
        assert server.stop() == 0
    with Server(repository, "--threads", "1", "--instance-timeout", "1s") as server:  # half of it, by default
        code, text = infer(server, "loop", "trips", "INT64", 2**62)
        assert code == 400 and "rounds" in text, (code, text)
        assert server.stop() == 0


def clients_that_leave():
    """A run goes on for nobody: its instance is free again although nothing limits its time."""
    with Server(repository, "--threads", "1", "--instance-timeout", "0s", "--loop-timeout", "0s") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        EndlessPost(server).leave()
        assert infer(server, "loop", "trips", "INT64", 5)[0] == 200
        over = threading.Event()
        before = cpu_seconds(server)
        call = c.async_infer("loop", loop_input(2**62), lambda result, error: over.set())
        until(lambda: cpu_seconds(server) > before + 0.2)
        call.cancel()
        assert over.wait(60)
        assert infer(server, "loop", "trips", "INT64", 5)[0] == 200
        assert server.stop() == 0


def the_end_of_the_server():
    """A loop without an end does not outlast --exit-timeout, and need not be killed then."""
    options = ("--threads", "1", "--instance-timeout", "0s", "--loop-timeout", "0s", "--exit-timeout", "500ms")
    with Server(repository, *options) as server:
        client = EndlessPost(server)
        code = server.stop()
        client.leave()
        log = "".join(server.log)
        assert code != 0 and "answered_all=no" in log and "exit_forced" not in log, (code, log)


def a_long_kernel():
    """What cannot be ended is waited for elsewhere: the model is not ready, refuses at once, and comes back."""
    options = ("--threads", "1", "--instance-timeout", "300ms", "--warm-up", "none", "--model-control", "explicit",
               "--load-model", "*")
    with Server(repository, *options, "--strict-readiness", "--unready-status", "400") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        took, error = fails(lambda: c.infer("long", long_input()))
        assert "hangs" in error, (took, error)
        seen = not c.is_model_ready("long") and status(server, "/v2/models/long/ready") == 400
        took, error = fails(lambda: c.infer("long", long_input()))
        if not seen:  # a machine so fast that it was over
            print("the long run was too short to be seen", flush=True)
        else:
            assert "no instance of the model is left" in error, (took, error)
            assert status(server, "/v2/health/ready") == 400  # strict; Triton's status
            assert server.metrics()['trireme_instances_hung{model="long",version="1"}'] == 1
        simple_works(c)
        until(lambda: c.is_model_ready("long"))
        assert status(server, "/v2/health/ready") == 200
        # Now it is known how long it takes: ten times that would be hanging.
        assert c.infer("long", long_input()).as_numpy("y") == 3
        assert server.stop() == 0


def unloaded_while_it_hangs():
    options = ("--threads", "1", "--instance-timeout", "300ms", "--warm-up", "none", "--model-control", "explicit",
               "--load-model", "*")
    with Server(repository, *options) as server:
        c = triton.InferenceServerClient(server.grpc_address)
        fails(lambda: c.infer("long", long_input()))
        c.unload_model("long")
        key = 'trireme_instances_hung{model="long",version="1"}'
        assert server.metrics().get(key, 0) == 0  # whether it was abandoned or has ended
        simple_works(c)
        c.load_model("long")
        assert server.metrics()[key] == 0
        fails(lambda: c.infer("long", long_input()))
        assert server.stop() == 0


try:
    run_cases([(case.__name__, case) for case in (
        endless_loops, loops_have_their_time, clients_that_leave, the_end_of_the_server, a_long_kernel,
        unloaded_while_it_hangs)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
