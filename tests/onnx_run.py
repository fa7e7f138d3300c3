# What `trireme run` makes of ONNX models, test data and inputs: defaults, names, comparisons, symbols, outputs.
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from _checks import check, finish, trireme

scratch = tempfile.TemporaryDirectory(prefix="onnx_run")
ROOM = Path(scratch.name)


def save(name, nodes, inputs, outputs, initializers=()):
    """Inputs and outputs: {name: (element type, shape)}."""
    def infos(values):
        return [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in values.items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = ROOM / f"{name}.onnx"
    onnx.save(model, path)
    return path


def add_model():
    """y = w + x, where w comes first and has a default."""
    return save("add", [helper.make_node("Add", ["x", "w"], ["y"])],
                {"w": (TensorProto.FLOAT, [3]), "x": (TensorProto.FLOAT, ["n", 3])},
                {"y": (TensorProto.FLOAT, ["n", 3])},
                [numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")])


def data_set(name, outputs, **inputs):
    """A set whose files hold the inputs in their order; names that begin with _ stand for tensors without one."""
    folder = ROOM / name / "test_data_set_0"
    folder.mkdir(parents=True)
    for kind, values in (("input", inputs), ("output", outputs)):
        for i, (tensor, value) in enumerate(values.items()):
            proto = numpy_helper.from_array(np.asarray(value), "" if tensor.startswith("_") else tensor)
            (folder / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())
    return folder.parent


def array(name, value):
    np.save(ROOM / f"{name}.npy", value)
    return f"{name}={ROOM / name}.npy"


def result(model, *words, output="y"):
    trireme("run", model, *words, "--output", ROOM / "out")
    return np.load(ROOM / "out" / f"{output}.npy")


def defaults():
    model, x, w = add_model(), np.ones((2, 3), np.float32), np.array([10, 20, 30], np.float32)
    plain = x + np.array([1, 2, 3], np.float32)
    given = ["--input", array("x", x)]
    check("the default holds", (result(model, *given) == plain).all())
    check("a default is replaced", (result(model, *given, "--input", array("w", w)) == x + w).all())
    trireme("run", model, "--test-data", data_set("default", {"y": plain}, x=x))
    trireme("run", model, "--test-data", data_set("by_name", {"y": x + w}, x=x, w=w))
    trireme("run", model, "--test-data", data_set("by_place", {"y": x + w}, _a=w, _b=x))
    trireme("run", model, "--test-data", data_set("needed", {"y": plain}, _a=x))
    said = trireme("run", model, "--test-data", data_set("many", {"y": x + w}, _a=w, _b=x, _c=x), code=2)
    check("more files than inputs are refused", "3 inputs" in said, said)
    said = trireme("run", model, "--test-data", data_set("lacking", {"y": x + w}, w=w), code=2)
    check("an input without a value is named", "none is 'x'" in said, said)
    said = trireme("run", model, *given, "--input", array("v", w), code=2)
    check("an unknown input is named", "no input 'v'" in said, said)


def comparisons():
    model, x = add_model(), np.ones((2, 3), np.float32)
    bad = data_set("bad_shape", {"y": np.zeros((2, 4), np.float32)}, x=x)
    said = trireme("run", model, "--test-data", bad, code=1)
    check("shapes are named", "is f32[2,3], expected f32[2,4]" in said, said)
    said = trireme("run", model, "--test-data", bad, "--json", code=1)
    row = json.loads(said)["test_data"][0]
    check("an error that is no number", row["relative_error"] is None and row["absolute_error"] is None, row)
    check("has a reason", "expected f32[2,4]" in row["reason"] and row["pass"] is False, row)
    nan = data_set("nan", {"y": np.array([[2, 3, 4], [2, np.nan, 4]], np.float32)}, x=x)
    row = json.loads(trireme("run", model, "--test-data", nan, "--json", code=1))["test_data"][0]
    check("the element is named", row["reason"] == "is 3 at element 4, expected nan", row)
    whole = save("whole", [helper.make_node("Add", ["x", "one"], ["y"])], {"x": (TensorProto.INT64, ["n"])},
                 {"y": (TensorProto.INT64, ["n"])}, [numpy_helper.from_array(np.array(1), "one")])
    large = data_set("large", {"y": np.array([2**60])}, x=np.array([2**60]))
    row = json.loads(trireme("run", whole, "--test-data", large, "--json"))["test_data"][0]
    check("large integers differ", row["absolute_error"] == 1, row)


def symbols():
    model = save("two", [helper.make_node("Add", ["a", "b"], ["y"]),
                         helper.make_node("Cast", ["y"], ["z"], to=TensorProto.BFLOAT16)],
                 {"a": (TensorProto.FLOAT, ["rows", 2]), "b": (TensorProto.FLOAT, ["rows", 2])},
                 {"z": (TensorProto.BFLOAT16, ["rows", 2]), "y": (TensorProto.FLOAT, ["rows", 2])})
    a = np.ones((3, 2), np.float32)
    check("a given input sizes the others", result(model, "--input", array("a", a)).shape == (3, 2))
    z = np.load(ROOM / "out/z.npy")
    check("bf16 is written as f32", z.dtype == np.float32 and z.shape == (3, 2), z.dtype)
    check("with its values", (np.abs(z - np.load(ROOM / "out/y.npy")) <= 0.01 * np.abs(z) + 1e-6).all())
    check("a size is given", result(model, "--dim", "rows=5").shape == (5, 2))
    said = trireme("run", model, "--dim", "zz=3", code=2)
    check("an unknown dimension is named", "no input has a dimension 'zz'; there is rows" in said, said)
    said = trireme("run", model, "--kernel", "referense", code=2)
    check("an unknown kernel is named", "'referense'; the nearest is 'reference'" in said, said)
    trireme("run", model, "--kernel", "reference")


defaults()
comparisons()
symbols()
scratch.cleanup()
finish()
