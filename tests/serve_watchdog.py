# An instance that does not come back: its requests are answered, the model is not ready, others go on, it recovers.
import shutil
import time
import urllib.error
import urllib.request

import numpy as np
import onnx
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _serving import Server, add_simple, run_cases, save, temporary, until, value

repository = temporary()
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
add_simple(repository)


def add_loop(name, instances=1):
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
    (repository / name / "config.pbtxt").write_text(f"max_batch_size: 0 instance_group {{ count: {instances} }}\n")


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


def fails(call):
    begin = time.monotonic()
    try:
        call()
    except InferenceServerException as error:
        return time.monotonic() - begin, str(error)
    raise AssertionError("the call succeeded")


def endless_loops():
    """The run is told to end, so the instance is there again at once."""
    with Server(repository, "--threads", "1", "--instance-timeout", "700ms") as server:
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
    run_cases([(case.__name__, case) for case in (endless_loops, a_long_kernel, unloaded_while_it_hangs)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
