"""Models whose time is spent in loops of ONNX: `loop_networks.py NAME OUT` writes OUT/model.onnx and OUT/feeds.

They are as converters write them: TensorFlow's (a Loop whose condition compares counters, rows by Gather or Slice of a
counter, results that grow row by row), scripted PyTorch's (a trip count, If in the body), and Scan.
"""
import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

OPSET = 17
FLOATS, NUMBERS, TRUTHS = T.FLOAT, T.INT64, T.BOOL


class Body:
    """A graph under construction; names are unique in the model."""

    count = 0

    def __init__(self):
        self.nodes, self.initializers = [], []

    def name(self, word):
        Body.count += 1
        return f"{word}_{Body.count}"

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array):
        name = self.name("const")
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def graph(self, name, inputs, outputs):
        infos = [helper.make_tensor_value_info(*info) for info in inputs]
        results = [helper.make_tensor_value_info(*info) for info in outputs]
        return helper.make_graph(self.nodes, name, infos, results, self.initializers)


def weight(rng, *dims):
    return (rng.standard_normal(dims) / np.sqrt(dims[0])).astype(np.float32)


def number(value, kind=np.int64):
    return np.array(value, kind)


def renamed(body, value, word):
    body.nodes.append(helper.make_node("Identity", [value], [body.name(word)]))
    return body.nodes[-1].output[0]


def carried_weights(main, body):
    """Makes matrices of a body values that the loop carries from round to round: (inputs, results, operands)."""
    inputs, results, operands = [], [], []
    for tensor in [t for t in body.initializers if len(t.dims) == 2]:
        body.initializers.remove(tensor)
        inputs.append((tensor.name, FLOATS, list(tensor.dims)))
        results.append((renamed(body, tensor.name, "same"), FLOATS, list(tensor.dims)))
        operands.append(main.constant(numpy_helper.to_array(tensor)))
    return inputs, results, operands


def keras_loop(rng, cell, states, batch, steps, inputs, hidden, rows="gather", carries=False):
    """A recurrent layer as TensorFlow's converter writes the while loop of Keras: the sequence turned to [steps, batch,
    inputs], counters in 32 bits, a condition of two comparisons of floats, every state h of `states`, a result a step.

    rows: by "gather" (an element of a list) or "slice" (a part of a tensor). carries: the weights are states that no
    round changes, as of Keras 3.
    """
    main, body = Body(), Body()
    sequence = main.op("Transpose", "x", perm=[1, 0, 2])
    limit = main.constant(np.float32(steps))
    counter, time = "loop_counter", "time"
    held = [f"held_{s}" for s in range(states)]
    one = body.constant(number(1, np.int32))
    if rows == "gather":
        axes = body.constant(number([0]))
        row = body.op("Gather", sequence, body.op("Unsqueeze", time, axes), axis=0)
        row = body.op("Squeeze", row, axes)
    else:
        axes = body.constant(number([0]))
        begin = body.op("Unsqueeze", body.op("Cast", time, to=NUMBERS), axes)
        end = body.op("Add", begin, body.constant(number([1])))
        row = body.op("Squeeze", body.op("Slice", sequence, begin, end, axes), axes)
    new = cell(body, rng, row, held)
    next_counter, next_time = body.op("Add", counter, one), body.op("Add", time, one)
    below = [body.op("Less", body.op("Cast", n, to=FLOATS), limit) for n in (next_counter, next_time)]
    again = body.op("And", *below)
    results = [renamed(body, value, "out") for value in [again, next_counter, next_time, *new, new[0]]]
    shape = [batch, hidden]
    same = carried_weights(main, body) if carries else ([], [], [])
    graph = body.graph(
        "while_body",
        [("round", NUMBERS, []), ("go", TRUTHS, []), (counter, T.INT32, []), (time, T.INT32, [])] +
        [(h, FLOATS, None) for h in held] + same[0],
        [(results[0], TRUTHS, []), (results[1], T.INT32, []), (results[2], T.INT32, [])] +
        [(r, FLOATS, None) for r in results[3:-1]] + same[1] + [(results[-1], FLOATS, None)])
    zero = main.constant(number(0, np.int32))
    start = main.constant(np.zeros(shape, np.float32))
    out = main.op("Loop", main.constant(number(2**63 - 1)), main.constant(np.array(True)), zero, zero,
                  *[start] * states, *same[2], outputs=3 + states + len(same[2]), body=graph)
    main.nodes.append(helper.make_node("Transpose", [out[-1]], ["y"], perm=[1, 0, 2]))
    main.nodes.append(helper.make_node("Identity", [out[2]], ["h"]))
    return main.graph("keras", [("x", FLOATS, [batch, steps, inputs])],
                      [("y", FLOATS, [batch, steps, hidden]), ("h", FLOATS, shape)]), {
                          "x": rng.standard_normal((batch, steps, inputs)).astype(np.float32)}


def gru_cell(inputs, hidden):
    """Keras's GRU with the reset gate behind the product."""

    def cell(body, rng, row, held):
        (h,) = held
        x = body.op("Add", body.op("MatMul", row, body.constant(weight(rng, inputs, 3 * hidden))),
                    body.constant(weight(rng, 3 * hidden)))
        r = body.op("Add", body.op("MatMul", h, body.constant(weight(rng, hidden, 3 * hidden))),
                    body.constant(weight(rng, 3 * hidden)))
        sizes = body.constant(number([hidden] * 3))
        xz, xr, xh = body.op("Split", x, sizes, outputs=3, axis=-1)
        rz, rr, rh = body.op("Split", r, sizes, outputs=3, axis=-1)
        z, reset = body.op("Sigmoid", body.op("Add", xz, rz)), body.op("Sigmoid", body.op("Add", xr, rr))
        candidate = body.op("Tanh", body.op("Add", xh, body.op("Mul", reset, rh)))
        rest = body.op("Sub", body.constant(np.float32(1)), z)
        return [body.op("Add", body.op("Mul", z, h), body.op("Mul", rest, candidate))]

    return cell


def lstm_cell(inputs, hidden):

    def cell(body, rng, row, held):
        h, c = held
        gates = body.op("Add", body.op("MatMul", row, body.constant(weight(rng, inputs, 4 * hidden))),
                        body.op("MatMul", h, body.constant(weight(rng, hidden, 4 * hidden))))
        gates = body.op("Add", gates, body.constant(weight(rng, 4 * hidden)))
        i, f, g, o = body.op("Split", gates, body.constant(number([hidden] * 4)), outputs=4, axis=-1)
        kept = body.op("Mul", body.op("Sigmoid", f), c)
        new_c = body.op("Add", kept, body.op("Mul", body.op("Sigmoid", i), body.op("Tanh", g)))
        return [body.op("Mul", body.op("Sigmoid", o), body.op("Tanh", new_c)), new_c]

    return cell


def scan(rng, batch=4, steps=64, inputs=48, hidden=96):
    """A plain recurrent cell over the slices of a Scan."""
    main, body = Body(), Body()
    total = body.op("Add", body.op("MatMul", "slice", body.constant(weight(rng, inputs, hidden))),
                    body.op("MatMul", "state", body.constant(weight(rng, hidden, hidden))))
    new = body.op("Tanh", body.op("Add", total, body.constant(weight(rng, hidden))))
    graph = body.graph("scan_body", [("state", FLOATS, [batch, hidden]), ("slice", FLOATS, [batch, inputs])],
                       [(new, FLOATS, [batch, hidden]), (renamed(body, new, "out"), FLOATS, [batch, hidden])])
    out = main.op("Scan", main.constant(np.zeros((batch, hidden), np.float32)), "x", outputs=2, body=graph,
                  num_scan_inputs=1)
    main.nodes += [helper.make_node("Identity", [out[0]], ["h"]), helper.make_node("Identity", [out[1]], ["y"])]
    return main.graph("scan", [("x", FLOATS, [steps, batch, inputs])],
                      [("h", FLOATS, [batch, hidden]), ("y", FLOATS, [steps, batch, hidden])]), {
                          "x": rng.standard_normal((steps, batch, inputs)).astype(np.float32)}


def decode(rng, steps=48, words=512, hidden=128):
    """Greedy decoding: keys and values of all words so far grow by one a step; it ends by a word or by the length."""
    main, body = Body(), Body()
    table = main.constant(weight(rng, words, hidden))
    axes = body.constant(number([0]))
    x = body.op("Gather", table, "word", axis=0)
    q, k, v = (body.op("MatMul", x, body.constant(weight(rng, hidden, hidden))) for _ in range(3))
    keys, values = body.op("Concat", "keys", k, axis=0), body.op("Concat", "values", v, axis=0)
    scores = body.op("Softmax", body.op("MatMul", q, body.op("Transpose", keys, perm=[1, 0])), axis=-1)
    mixed = body.op("Add", x, body.op("MatMul", scores, values))
    wide = body.op("Relu", body.op("MatMul", mixed, body.constant(weight(rng, hidden, 4 * hidden))))
    y = body.op("Add", mixed, body.op("MatMul", wide, body.constant(weight(rng, 4 * hidden, hidden))))
    logits = body.op("MatMul", y, body.constant(weight(rng, hidden, words)))
    word = body.op("ArgMax", logits, axis=1, keepdims=0)
    ended = body.op("Equal", body.op("Squeeze", word, axes), body.constant(number(words)))
    results = [renamed(body, value, "out") for value in [body.op("Not", ended), word, keys, values, word]]
    graph = body.graph(
        "decode_body",
        [("round", NUMBERS, []), ("go", TRUTHS, []), ("word", NUMBERS, [1]), ("keys", FLOATS, [None, hidden]),
         ("values", FLOATS, [None, hidden])],
        [(results[0], TRUTHS, []), (results[1], NUMBERS, [1]), (results[2], FLOATS, [None, hidden]),
         (results[3], FLOATS, [None, hidden]), (results[4], NUMBERS, [1])])
    none = main.constant(np.zeros((0, hidden), np.float32))
    out = main.op("Loop", main.constant(number(steps)), main.constant(np.array(True)), "first", none, none,
                  outputs=4, body=graph)
    main.nodes.append(helper.make_node("Identity", [out[3]], ["y"]))
    return main.graph("decode", [("first", NUMBERS, [1])], [("y", NUMBERS, [None, 1])]), {"first": number([3])}


def branches(rng, steps=64, hidden=128):
    """A loop in which every other round takes another branch."""
    main, body, even, odd = Body(), Body(), Body(), Body()
    x = body.op("MatMul", "state", body.constant(weight(rng, hidden, hidden)))
    is_even = body.op("Equal", body.op("Mod", "round", body.constant(number(2))), body.constant(number(0)))
    shape = [1, hidden]
    yes = even.op("Tanh", even.op("Add", x, even.constant(weight(rng, hidden))))
    no = odd.op("Sigmoid", odd.op("Mul", x, odd.constant(weight(rng, hidden))))
    new = body.op("If", is_even, then_branch=even.graph("even", [], [(yes, FLOATS, shape)]),
                  else_branch=odd.graph("odd", [], [(no, FLOATS, shape)]))
    results = [renamed(body, value, "out") for value in ["go", new, new]]
    graph = body.graph("body", [("round", NUMBERS, []), ("go", TRUTHS, []), ("state", FLOATS, shape)],
                       [(results[0], TRUTHS, [])] + [(r, FLOATS, shape) for r in results[1:]])
    out = main.op("Loop", main.constant(number(steps)), main.constant(np.array(True)), "x", outputs=2, body=graph)
    main.nodes += [helper.make_node("Identity", [out[0]], ["h"]), helper.make_node("Identity", [out[1]], ["y"])]
    return main.graph("branches", [("x", FLOATS, shape)], [("h", FLOATS, shape), ("y", FLOATS, [steps, 1, hidden])]), {
        "x": rng.standard_normal(shape).astype(np.float32)}


NETWORKS = {
    "gru": lambda rng: keras_loop(rng, gru_cell(32, 64), 1, 1, 64, 32, 64),
    "gru_carries": lambda rng: keras_loop(rng, gru_cell(128, 256), 1, 1, 40, 128, 256, carries=True),
    "gru_b8": lambda rng: keras_loop(rng, gru_cell(64, 128), 1, 8, 50, 64, 128),
    "lstm": lambda rng: keras_loop(rng, lstm_cell(32, 64), 2, 1, 64, 32, 64),
    "lstm_slices": lambda rng: keras_loop(rng, lstm_cell(64, 128), 2, 4, 50, 64, 128, rows="slice"),
    "scan": scan,
    "decode": decode,
    "branches": branches,
}


def write(name, folder):
    graph, feeds = NETWORKS[name](np.random.default_rng(7))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model)
    folder = pathlib.Path(folder)
    (folder / "feeds").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    for key, array in feeds.items():
        np.save(folder / "feeds" / f"{key}.npy", array)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("folder")
    given = parser.parse_args()
    write(given.name, given.folder)
