# Models that several ranks hold are served with the answers of one rank.
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
from onnx import TensorProto, helper

from _serving import Server, run_cases, save, temporary, value

repository = temporary()
random = np.random.default_rng(3)


def add_mlp(name, layers=4, width=48, hidden=96):
    """Residual pairs of products [batch, width]: each pair is one that ranks split, each sum one that stages cut."""
    nodes, weights, x = [], [], "x"
    for i in range(layers):
        for kind, shape in (("up", (width, hidden)), ("down", (hidden, width))):
            data = (0.2 * random.standard_normal(shape)).astype(np.float32)
            weights.append(onnx.numpy_helper.from_array(data, f"{i}.{kind}"))
        nodes += [helper.make_node("MatMul", [x, f"{i}.up"], [f"u{i}"]), helper.make_node("Tanh", [f"u{i}"], [f"t{i}"]),
                  helper.make_node("MatMul", [f"t{i}", f"{i}.down"], [f"d{i}"]),
                  helper.make_node("Add", [x, f"d{i}"], [f"x{i}"])]
        x = f"x{i}"
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    save(nodes, [value("x", TensorProto.FLOAT, ["batch", width])], [value("y", TensorProto.FLOAT, ["batch", width])],
         repository / name / "1" / "model.onnx", weights)


add_mlp("mlp")
STRATEGY = temporary() / "strategy.yaml"
STRATEGY.write_text("dp: 4\nzero: 3\ntp: 2\npp: 2\n")


def infer(server, x):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}
    request = urllib.request.Request(server.url + "/v2/models/mlp/infer", json.dumps(body).encode())
    answer = json.loads(urllib.request.urlopen(request, timeout=30).read())["outputs"][0]
    return np.array(answer["data"], np.float32).reshape(answer["shape"])


def answers_of(*options):
    inputs = [np.random.default_rng(i).standard_normal((1 + i % 3, 48)).astype(np.float32) for i in range(24)]
    with Server(repository, "--threads", "2", *options) as server:
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda x: infer(server, x), inputs))
        assert server.stop() == 0
    return answers


ALONE = answers_of()


def same(*options):
    for got, want in zip(answers_of(*options), ALONE):
        assert got.shape == want.shape and np.abs(got - want).max() < 1e-4 * np.abs(want).max(), np.abs(got - want).max()


def wrong_input():
    """A request that does not fit is its client's error alone."""
    with Server(repository, "--threads", "2", "--tp", "2") as server:
        good = np.ones((1, 48), np.float32)
        want = infer(server, good)
        try:
            infer(server, np.ones((1, 47), np.float32))
            assert False, "answered"
        except urllib.error.HTTPError as e:
            assert e.code == 400, e.code
        assert (infer(server, good) == want).all()


run_cases([("tensor parallel", lambda: same("--tp", "2")), ("stages", lambda: same("--pp", "2")),
           ("stages of tensor-parallel ranks", lambda: same("--tp", "2", "--pp", "2")),
           ("two instances of two ranks", lambda: same("--tp", "2", "--instances", "2")),
           ("the strategy of a training", lambda: same("--strategy", str(STRATEGY))), ("wrong input", wrong_input)])
