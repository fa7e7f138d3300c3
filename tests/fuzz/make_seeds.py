# Writes the seed corpora onnx/, session/, npy/, safetensors/, idx/, tar/ and tfrecord/ beside it: small well-formed
# files to mutate.
import gzip
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
F32, I64, I32, U8, BOOL = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL)

# One operator each: (type, input shapes, constants behind them, attributes). A string in place of a shape is absent.
ONES = np.ones
CASES = [
    ("Relu", [[2, 3]], [], {}), ("Add", [[2, 3], [3]], [], {}), ("Erf", [["n", 3]], [], {}),
    ("Clip", [[4]], [np.float32(-1), np.float32(1)], {}), ("Softmax", [[2, 3]], [], {"axis": -1}),
    ("MatMul", [[2, 3]], [ONES((3, 4), np.float32)], {}), ("Gemm", [[2, 3]], [ONES((4, 3), np.float32)], {"transB": 1}),
    ("Conv", [[1, 2, 5, 5]], [ONES((2, 2, 3, 3), np.float32)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("Conv", [[1, 2, 5, 5]], [ONES((2, 1, 3, 3), np.float32)], {"group": 2, "dilations": [2, 2]}),
    ("ConvTranspose", [[1, 2, 3, 3]], [ONES((2, 2, 2, 2), np.float32)], {"strides": [2, 2]}),
    ("MaxPool", [[1, 2, 5, 5]], [], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [[1, 2, 5, 5]], [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("GlobalAveragePool", [[1, 2, 5, 5]], [], {}), ("LpPool", [[1, 1, 4, 4]], [], {"kernel_shape": [2, 2]}),
    ("Transpose", [[2, 3, 4]], [], {"perm": [2, 0, 1]}), ("Reshape", [[2, 6]], [np.array([3, -1])], {}),
    ("Expand", [[1, 3]], [np.array([2, 3])], {}), ("Tile", [[2]], [np.array([3])], {}),
    ("Pad", [[2, 2]], [np.array([0, 1, 0, 1])], {"mode": "reflect"}), ("Concat", [[2, 3], [2, 1]], [], {"axis": 1}),
    ("Slice", [[5]], [np.array([1]), np.array([-1]), np.array([0]), np.array([2])], {}),
    ("Gather", [[4, 2]], [np.array([1, 0])], {}), ("GatherND", [[2, 2]], [np.array([[0, 1]])], {}),
    ("GatherElements", [[2, 2]], [np.array([[0, 1]])], {}),
    ("ScatterND", [[4]], [np.array([[1], [2]]), ONES(2, np.float32)], {"reduction": "add"}),
    ("ScatterElements", [[4]], [np.array([1, 2]), ONES(2, np.float32)], {}),
    ("Squeeze", [[1, 3]], [np.array([0])], {}), ("Unsqueeze", [[3]], [np.array([0, 2])], {}),
    ("Flatten", [[2, 3, 4]], [], {"axis": 1}), ("ReduceMean", [[2, 3]], [np.array([1])], {}),
    ("ReduceLogSumExp", [[2, 3]], [np.array([-1])], {"keepdims": 0}), ("ArgMax", [[2, 3]], [], {"axis": 1}),
    ("TopK", [[4]], [np.array([2])], {}), ("CumSum", [[4]], [np.int64(0)], {"exclusive": 1}),
    ("NonZero", [[3]], [], {}), ("Unique", [[4]], [], {"sorted": 1}), ("Shape", [["n", 2]], [], {}),
    ("Where", [], [np.array([True, False]), ONES(2, np.float32), ONES(2, np.float32)], {}),
    ("OneHot", [], [np.array([1, 2]), np.int64(3), np.array([0, 1], np.float32)], {}),
    ("Range", [], [np.float32(0), np.float32(3), np.float32(1)], {}),
    ("ConstantOfShape", [], [np.array([2, 2])], {}), ("EyeLike", [[2, 2]], [], {}), ("Cast", [[3]], [], {"to": I64}),
    ("BatchNormalization", [[1, 2, 3]], [ONES(2, np.float32)] * 4, {}),
    ("LayerNormalization", [[2, 4]], [ONES(4, np.float32), ONES(4, np.float32)], {}),
    ("InstanceNormalization", [[1, 2, 3]], [ONES(2, np.float32)] * 2, {}),
    ("GroupNormalization", [[1, 4, 2]], [ONES(4, np.float32)] * 2, {"num_groups": 2}),
    ("LRN", [[1, 3, 2, 2]], [], {"size": 3}),
    ("Resize", [[1, 1, 2, 2]], [np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
    ("GridSample", [[1, 1, 3, 3], [1, 2, 2, 2]], [], {}), ("RoiAlign", [[1, 1, 4, 4], [1, 4]], [np.array([0])], {}),
    ("DepthToSpace", [[1, 4, 2, 2]], [], {"blocksize": 2}), ("Einsum", [[2, 3], [3, 2]], [], {"equation": "ij,jk->ik"}),
    ("LSTM", [[2, 1, 2]], [ONES((1, 8, 2), np.float32), ONES((1, 8, 2), np.float32)], {"hidden_size": 2}),
    ("GRU", [[2, 1, 2]], [ONES((1, 6, 2), np.float32), ONES((1, 6, 2), np.float32)], {"hidden_size": 2}),
    ("QuantizeLinear", [[4]], [np.float32(0.1), np.uint8(3)], {}), ("DynamicQuantizeLinear", [[4]], [], {}),
    ("DequantizeLinear", [], [np.arange(4, dtype=np.int8), np.float32(0.5)], {}),
    ("Trilu", [[3, 3]], [], {"upper": 0}), ("Det", [[2, 2]], [], {}), ("Split", [[4]], [np.array([1, 3])], {"axis": 0}),
    ("Attention", [[1, 2, 2, 4]] * 3, [], {"is_causal": 1}), ("DFT", [[1, 4, 1]], [], {}),
    ("Hardmax", [[2, 3]], [], {}), ("Mod", [[3], [3]], [], {"fmod": 1}), ("IsInf", [[3]], [], {}),
]


def model(nodes, inputs, constants, functions=()):
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F32, None)], constants)
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions)).SerializeToString()


def info(name, shape, kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def single_models():
    for i, (op, shapes, constants, attributes) in enumerate(CASES):
        names = [f"x{k}" for k in range(len(shapes))] + [f"c{k}" for k in range(len(constants))]
        node = helper.make_node(op, names, ["y"], **attributes)
        yield f"{i:02}_{op}", model([node], [info(f"x{k}", s) for k, s in enumerate(shapes)],
                                    [numpy_helper.from_array(np.asarray(c), f"c{k}") for k, c in enumerate(constants)])


def larger_models():
    weight = numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w")
    node = helper.make_node
    yield "network", model(
        [node("Conv", ["x", "w"], ["a"]), node("BatchNormalization", ["a", "s", "s", "s", "s"], ["b"]),
         node("Relu", ["b"], ["c"]), node("Add", ["c", "x"], ["d"]), node("GlobalAveragePool", ["d"], ["e"]),
         node("Flatten", ["e"], ["y"])],
        [info("x", ["n", 2, 3, 3])], [weight, numpy_helper.from_array(np.ones(2, np.float32), "s")])
    quantized = [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(1), "z"),
                 numpy_helper.from_array(np.ones((2, 2, 1, 1), np.int8), "w"),
                 numpy_helper.from_array(np.int8(0), "wz")]
    yield "quantized", model(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"]),
         node("DequantizeLinear", ["w", "s", "wz"], ["v"]), node("Conv", ["d", "v"], ["c"]),
         node("QuantizeLinear", ["c", "s", "z"], ["r"]), node("DequantizeLinear", ["r", "s", "z"], ["y"])],
        [info("x", [1, 2, 2, 2])], quantized)
    branch = [helper.make_graph([node(op, ["x"], ["t"])], "b", [], [info("t", None)]) for op in ("Relu", "Neg")]
    yield "if", model([node("If", ["p"], ["y"], then_branch=branch[0], else_branch=branch[1])],
                      [info("x", [2]), info("p", [], BOOL)], [])
    body = helper.make_graph([node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"])], "b",
                             [info("i", [], I64), info("go", [], BOOL), info("v", [2])],
                             [info("on", [], BOOL), info("w", [2])])
    yield "loop", model([node("Loop", ["k", "", "x"], ["y"], body=body)], [info("x", [2])],
                        [numpy_helper.from_array(np.int64(2), "k")])
    double = helper.make_function("f", "double", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])],
                                  [helper.make_opsetid("", 23)])
    yield "function", model([node("double", ["x"], ["y"], domain="f")], [info("x", [2])], [], [double])
    shapes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "z"], ["g"]), node("Unsqueeze", ["g", "z1"], ["u"]),
              node("Concat", ["u", "m"], ["c"], axis=0), node("Reshape", ["x", "c"], ["y"])]
    yield "shapes", model(shapes, [info("x", ["n", 2, 2])],
                          [numpy_helper.from_array(np.int64(0), "z"), numpy_helper.from_array(np.array([0]), "z1"),
                           numpy_helper.from_array(np.array([-1]), "m")])


def array_files():
    for kind in ("float32", "int64", "bool", ">f2", "uint8"):
        out = io.BytesIO()
        np.save(out, np.asfortranarray(np.ones((2, 3), kind)))
        yield f"{kind.strip('>')}.npy", out.getvalue()
    for name, save in (("stored.npz", np.savez), ("deflated.npz", np.savez_compressed)):
        out = io.BytesIO()
        save(out, a=np.arange(4, dtype=np.int32), b=np.ones((2, 2), np.float16))
        yield name, out.getvalue()
    for kind in (np.float32, np.int64, np.bool_, np.float16, np.uint8):
        yield f"{kind.__name__}.pb", numpy_helper.from_array(np.ones((2, 2), kind), "t").SerializeToString()
    typed = TensorProto(name="t", dims=[3], data_type=I32, int32_data=[1, 2, 3])
    yield "typed.pb", typed.SerializeToString()


def safetensors_files():
    header = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
              "b": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]}, "__metadata__": {"format": "pt"}}
    for name, entries in (("two", header), ("none", {}), ("empty", {"e": {"dtype": "BF16", "shape": [0, 4],
                                                                          "data_offsets": [0, 0]}})):
        text = json.dumps(entries).encode()
        yield name, struct.pack("<Q", len(text)) + text + (bytes(24) if name == "two" else b"")


def idx_files():
    """IDX: labels, images, floats; one of them packed."""
    labels = b"\0\0\x08\x01" + struct.pack(">I", 3) + b"\1\2\3"
    images = b"\0\0\x08\x03" + struct.pack(">III", 2, 2, 2) + bytes(range(8))
    floats = b"\0\0\x0d\x02" + struct.pack(">II", 1, 2) + struct.pack(">2f", 1, -2)
    return [("labels", labels), ("images", images), ("floats", floats), ("images.gz", gzip.compress(images, mtime=0))]


def tar_files():
    """Archives with the three ways to write a long name."""
    found = []
    for form, number in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=number) as archive:
            for name in ("0001.txt", "d/" + "n" * 90 + "/" + "m" * 60 + ".cls"):
                entry = tarfile.TarInfo(name)
                entry.size = 5
                archive.addfile(entry, io.BytesIO(b"12345"))
        found.append((form, stream.getvalue()[:5632]))
    return found


def tfrecord_files():
    """tf.Example records: bare, and framed with their masked sums."""
    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    def crc(content):
        value = 0xFFFFFFFF
        for byte in content:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        value ^= 0xFFFFFFFF
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    features = [(b"name", field(1, field(1, b"cat"))), (b"x", field(2, field(1, struct.pack("<2f", 1, -2)))),
                (b"y", field(3, field(1, b"\x05\x80\x01"))), (b"z", field(3, b"\x08\x07"))]
    example = field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in features))
    length = struct.pack("<Q", len(example))
    return [("bare", example), ("framed", length + crc(length) + example + crc(example))]


def main():
    models = [*single_models(), *larger_models()]
    for folder, files in (("onnx", models[-6:] + models[::6]), ("session", models), ("npy", array_files()),
                          ("safetensors", safetensors_files()), ("idx", idx_files()), ("tar", tar_files()),
                          ("tfrecord", tfrecord_files())):
        (HERE / folder).mkdir(exist_ok=True)
        for name, data in files:
            (HERE / folder / name).write_bytes(data)


main()
