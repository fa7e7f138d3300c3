# Writes seed corpora beside it (onnx/, session/, npy/, safetensors/, checkpoint_reader/, trace/ and others): small
# well-formed files to mutate.
import gzip
import io
import json
import struct
import tarfile
import zlib
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
    ("MaxUnpool", [[1, 1, 2, 2]], [np.array([0, 3, 8, 11]).reshape(1, 1, 2, 2)],
     {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("MaxRoiPool", [[1, 1, 4, 4], [2, 5]], [], {"pooled_shape": [2, 2]}),
    ("DeformConv", [[1, 2, 3, 3]], [ONES((2, 1, 2, 2), np.float32), ONES((1, 8, 2, 2), np.float32),
                                    ONES(2, np.float32), ONES((1, 4, 2, 2), np.float32)], {"group": 2}),
    ("ConvInteger", [], [ONES((1, 2, 3, 3), np.uint8), ONES((3, 2, 2, 2), np.uint8), np.uint8(1), ONES(3, np.uint8)],
     {}),
    ("QLinearConv", [], [ONES((1, 2, 3, 3), np.uint8), np.float32(0.1), np.uint8(1), ONES((3, 2, 2, 2), np.int8),
                         ONES(3, np.float32), ONES(3, np.int8), np.float32(0.2), np.uint8(3), ONES(3, np.int32)], {}),
    ("QLinearMatMul", [], [ONES((2, 3), np.uint8), ONES(2, np.float32), ONES(2, np.uint8), ONES((3, 4), np.int8),
                           ONES(4, np.float32), ONES(4, np.int8), np.float32(0.1), np.uint8(0)], {}),
    ("MatMulInteger", [], [ONES((2, 3), np.uint8), ONES((3, 4), np.int8), ONES(2, np.uint8), ONES(4, np.int8)], {}),
    ("DequantizeLinear", [], [ONES((2, 4), np.int8), ONES((2, 2), np.float32), ONES((2, 2), np.int8)],
     {"block_size": 2, "axis": 1}),
    ("RNN", [[3, 2, 2]], [ONES((1, 4, 2), np.float32), ONES((1, 4, 4), np.float32), ONES((1, 8), np.float32),
                          np.array([3, 1], np.int32), ONES((1, 2, 4), np.float32)], {"hidden_size": 4}),
    ("RotaryEmbedding", [[1, 2, 3, 4], [5, 2], [5, 2]], [np.array([[0, 1, 2]])], {}),
    ("Attention", [[1, 2, 4], [1, 3, 4], [1, 3, 4]], [ONES((2, 3), np.float32)],
     {"q_num_heads": 2, "kv_num_heads": 2}),
    ("STFT", [[1, 12, 1]], [np.int64(2), ONES(4, np.float32), np.int64(4)], {}),
    ("MelWeightMatrix", [], [np.int64(3), np.int64(8), np.int64(800), np.float32(0), np.float32(400)], {}),
    ("HannWindow", [], [np.int64(5)], {}),
    ("DFT", [[1, 4, 2]], [np.int64(3), np.int64(1)], {"onesided": 0, "inverse": 1}),
    ("NonMaxSuppression", [[1, 3, 4], [1, 2, 3]], [np.int64(2), np.float32(0.5), np.float32(0.1)], {}),
    ("ReverseSequence", [[3, 2, 2]], [np.array([1, 3])], {}),
    ("Compress", [[3, 2]], [np.array([True, False])], {"axis": 0}),
    ("Col2Im", [[1, 4, 4]], [np.array([3, 3]), np.array([2, 2])], {}),
    ("CenterCropPad", [[3, 4]], [np.array([4, 2])], {}), ("AffineGrid", [[1, 2, 3]], [np.array([1, 1, 2, 3])], {}),
    ("SpaceToDepth", [[1, 1, 4, 4]], [], {"blocksize": 2}), ("RMSNormalization", [[2, 4]], [ONES(4, np.float32)], {}),
    ("LpNormalization", [[2, 3]], [], {"p": 1}), ("MeanVarianceNormalization", [[1, 2, 3, 3]], [], {}),
    ("NegativeLogLikelihoodLoss", [[2, 3]], [np.array([0, 2]), ONES(3, np.float32)], {"reduction": "sum"}),
    ("SoftmaxCrossEntropyLoss", [[2, 3]], [np.array([0, 2])], {"ignore_index": 2}),
    ("Dropout", [[2, 3]], [np.float32(0.3), np.bool_(True)], {"seed": 1}),
    ("BitShift", [], [np.array([1, 2], np.uint8), np.array([3, 1], np.uint8)], {"direction": "RIGHT"}),
    ("BitwiseAnd", [], [np.array([1, 2]), np.array([3, 1])], {}), ("PRelu", [[2, 3]], [ONES(3, np.float32)], {}),
    ("Multinomial", [[2, 3]], [], {"sample_size": 2}), ("Bernoulli", [[3]], [], {}),
    ("RandomNormal", [], [], {"shape": [2]}), ("RandomUniformLike", [[3]], [], {}),
    ("CumProd", [[4]], [np.int64(0)], {"reverse": 1}), ("Pow", [[3]], [np.float32(2)], {}),
    ("Resize", [[1, 1, 4, 4]], ["", "", np.array([1, 1, 2, 3])], {"mode": "cubic", "antialias": 1}),
    ("Resize", [[1, 1, 3, 3]],
     [np.array([0, 0, 0.2, 0.2, 1, 1, 0.9, 0.9], np.float32), np.array([1, 1, 2, 2], np.float32)],
     {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}),
    ("TensorScatter", [[1, 4, 2], [1, 1, 2]], [np.array([2])], {"axis": 1}), ("SwiGLU", [[2, 3], [2, 3]], [], {}),
    ("CausalConvWithState", [[1, 2, 3], [2, 1, 2]], [], {}),
    ("LinearAttention", [[1, 3, 4], [1, 3, 4], [1, 3, 4]], [],
     {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}),
    ("CastLike", [[3]], [np.array([1])], {}), ("Max", [[3], [2, 3]], [ONES((2, 1), np.float32)], {}),
    ("GlobalLpPool", [[1, 2, 3, 3]], [], {"p": 3}), ("ArgMin", [[2, 3]], [], {"select_last_index": 1}),
]


def model(nodes, inputs, constants, functions=()):
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F32, None)], constants)
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions)).SerializeToString()


def info(name, shape, kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def single_models():
    for i, (op, shapes, constants, attributes) in enumerate(CASES):
        names = [f"x{k}" for k in range(len(shapes))] + ["" if isinstance(c, str) else f"c{k}"
                                                         for k, c in enumerate(constants)]
        node = helper.make_node(op, names, ["y"], **attributes)
        yield f"{i:02}_{op}", model([node], [info(f"x{k}", s) for k, s in enumerate(shapes)],
                                    [numpy_helper.from_array(np.asarray(c), f"c{k}") for k, c in enumerate(constants)
                                     if not isinstance(c, str)])


def old_models():
    """Forms that newer opsets replaced."""
    for name, opset, op, shapes, attributes in (
            ("softmax", 11, "Softmax", [[2, 3, 2]], {"axis": 1}),
            ("upsample", 7, "Upsample", [[1, 1, 2, 2]], {"scales": [1.0, 1.0, 2.0, 2.0]}),
            ("pad", 2, "Pad", [[2, 2]], {"pads": [0, 1, 0, 1], "value": 1.0}),
            ("prelu", 6, "PRelu", [[1, 2, 3], [2]], {}),
            ("add", 6, "Add", [[2, 3, 2], [3]], {"broadcast": 1, "axis": 1}),
            ("split", 11, "Split", [[4]], {"split": [1, 3]}),
            ("slice", 9, "Slice", [[4]], {"starts": [1], "ends": [3]}), ("topk", 9, "TopK", [[4]], {"k": 2}),
            ("clip", 6, "Clip", [[4]], {"min": 0.0, "max": 1.0}), ("squeeze", 11, "Squeeze", [[1, 2]], {"axes": [0]}),
            ("group_norm", 18, "GroupNormalization", [[1, 4, 2], [2], [2]], {"num_groups": 2})):
        node = helper.make_node(op, [f"x{k}" for k in range(len(shapes))], ["y"] if op not in ("TopK", "Split") else
                                ["y", "z"], **attributes)
        graph = helper.make_graph([node], "g", [info(f"x{k}", s) for k, s in enumerate(shapes)],
                                  [helper.make_tensor_value_info("y", F32, None)], [])
        yield f"old_{name}", helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                                               ir_version=6).SerializeToString()


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


def gguf_files():
    """GGUF: every kind of value, arrays, tensors in floats and blocks; an empty file."""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    def entry(key, kind, data):
        return text(key) + struct.pack("<I", kind) + data
    scalars = [(0, "<B", 7), (1, "<b", -7), (2, "<H", 7), (3, "<h", -7), (4, "<I", 7), (5, "<i", -7), (6, "<f", 1.5),
               (7, "<B", 1), (10, "<Q", 7), (11, "<q", -7), (12, "<d", 2.5)]
    values = [entry(f"k{kind}", kind, struct.pack(form, value)) for kind, form, value in scalars]
    values += [entry("general.architecture", 8, text("llama")),
               entry("tokens", 9, struct.pack("<IQ", 8, 3) + text("<s>") + text("") + text("the")),
               entry("scores", 9, struct.pack("<IQ2f", 6, 2, 0, -1)),
               entry("kinds", 9, struct.pack("<IQ2i", 5, 2, 1, 3))]
    tensors = [("a", (3,), 0, 0), ("b", (32, 2), 2, 32), ("e", (32, 0), 8, 96)]
    listed = [text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at)
              for name, dims, kind, at in tensors]
    for name, entries, directory in (("all", values, listed), ("empty", [], []), ("values", values, [])):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(directory), len(entries)) + b"".join(entries) + b"".join(directory)
        yield name, head + bytes(-len(head) % 32) + (bytes(range(96)) if directory else b"")


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


def checkpoint_indices():
    """Indices over a file `bytes` of 256 bytes; the target adds the checksum."""
    def chunk(offset, size, at, count):
        return {"offset": offset, "size": size, "file": "bytes", "byte_offset": at, "bytes": count,
                "crc32c": "00000000"}

    whole = {"name": "w", "dtype": "f32", "shape": [2, 3], "chunks": [chunk([0, 0], [2, 3], 0, 24)]}
    halves = {"name": "v", "dtype": "i64", "shape": [4], "chunks": [chunk([0], [3], 8, 24), chunk([3], [1], 32, 8)]}
    for name, tensors in (("none", []), ("whole", [whole]), ("halves", [halves, whole])):
        yield name, json.dumps({"format": "trireme-checkpoint", "version": 1, "step": 3, "meta": {"a": 1},
                                "tensors": tensors}).encode()


def typed_checkpoints():
    """The same indices with every element type: a first byte says which, the target mends what follows from it. And
    indices as they would lie on a disk for the types of which several elements share a byte."""
    indices = dict(checkpoint_indices())
    for dtype in range(23):
        yield f"type_{dtype:02}", bytes([dtype]) + indices["halves"]
    for name, elements in (("i4", 48), ("u4", 48), ("f4e2m1", 48), ("i2", 96), ("u2", 96)):
        chunk = {"offset": [0], "size": [elements], "file": "bytes", "byte_offset": 0, "bytes": 24,
                 "crc32c": "00000000"}
        yield name, json.dumps({"format": "trireme-checkpoint", "version": 1, "step": 0, "meta": {}, "tensors": [
            {"name": "w", "dtype": name, "shape": [elements], "chunks": [chunk]}]}).encode()


def progressive_jpeg(side, scans):
    """A grey picture whose scans after the first say nothing: fourteen bytes each for up to 16384 blocks."""
    def segment(marker, content):
        return bytes([0xff, marker]) + struct.pack(">H", len(content) + 2) + content

    def table(number, symbol):
        return segment(0xc4, bytes([number, 1, *[0] * 15, symbol]))

    blocks = (side // 8) ** 2
    parts = [b"\xff\xd8", segment(0xdb, b"\0" + b"\1" * 64),
             segment(0xc2, b"\x08" + struct.pack(">HH", side, side) + b"\1\1\x11\0"), table(0, 0), table(0x10, 0xe0),
             segment(0xda, b"\1\1\0\0\0\0") + bytes((blocks + 7) // 8)]
    runs = (blocks + 16383) // 16384
    parts += [segment(0xda, b"\1\1\0\1\x3f\0") + bytes((runs * 15 + 7) // 8)] * (scans - 1)
    return b"".join(parts) + b"\xff\xd9"


def png(side, *chunks, bits=1, interlace=1):
    """A grey picture with these chunks behind its header."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (side * bits + 7) // 8 + 1
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, 0, 0, 0, interlace)) +
            b"".join(chunk(kind, content) for kind, content in chunks) +
            chunk(b"IDAT", zlib.compress(bytes(rows * side * 2))) + chunk(b"IEND", b""))


def pictures():
    """Files that state more work than their bytes pay for, beside honest ones of the same kind."""
    yield "jpeg_scans_10", progressive_jpeg(64, 10)
    yield "jpeg_scans_495", progressive_jpeg(1024, 495)
    swelling = b"name\0\0" + zlib.compress(b"a" * (1 << 20))
    yield "png_texts", png(8, *[(b"zTXt", swelling)] * 4, (b"iCCP", swelling), interlace=0)
    yield "png_interlaced", png(64)
    small = png(8, interlace=0)
    yield "png_huge", small[:16] + struct.pack(">II", 7000, 7000) + small[24:29] + struct.pack(
        ">I", zlib.crc32(small[12:16] + struct.pack(">II", 7000, 7000) + small[24:29])) + small[33:]


def row_files():
    """Rows behind two bytes, which say of what kind they are."""
    yield "jsonl", (b'j {"a": 1, "b": [1, 2.5], "c": "x", "d": [[1, 2], [3, 4]], "e": true}\n'
                    b'{"a": 2.5, "b": [], "c": null}\n')
    yield "jsonl_large", b'j {"a": 9007199254740993, "b": [18446744073709551615, 1]}\n'
    yield "jsonl_wide", b"j {" + b", ".join(b'"%d": %d' % (i, i) for i in range(300)) + b"}\n"
    yield "csv", b'h,name,score,text\na,1,"x, ""y"""\nb,2.5,z\n'
    yield "tsv", b"n\t1\t2\t3\n4\t5\t6\n"
    yield "gzip", b"j " + gzip.compress(b'{"a": 1}\n', mtime=0)


def shard(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue().rstrip(b"\0") + bytes(1024)


def webdatasets():
    yield "pairs", shard([("d/1.png", png(4, interlace=0)), ("d/1.cls", b"3\n"), ("d/2.jpg", progressive_jpeg(16, 2)),
                          ("d/2.cls", b"-1")])
    yield "texts", shard([("1.txt", b"words"), ("1.json.gz", gzip.compress(b"{}", mtime=0)), ("1.seg.png", b"no"),
                          ("2.npy", b"x")])
    yield "many", shard([(f"1.e{i}", b"") for i in range(20)])


def files_of_rows():
    """Format and rows of a span as two bytes, then a file: lines, requests, cells, records, an archive, an array."""
    lines = b'{"n": 1, "t": "a", "v": [1, 2.5]}\r\n\n{"n": 2}\n{"n": "no", "t": null}\nnot json\n'
    yield "lines", b"\0\1" + lines
    yield "packed_lines", b"\0\1" + gzip.compress(lines, mtime=0) + gzip.compress(lines, mtime=0)
    request = b'{"custom_id": "1", "method": "POST", "url": "/v1/x", "body": {"k": [1]}}\n'
    yield "requests", b"\1\2" + request + b'{"custom_id": 2}\n'
    yield "cells", b'\2\0a,n\n"x, ""y""\nz",1\n\nw,\n5" pipe,2\n'
    yield "headless_cells", b"\x86\3" + b"1,2\n3,4\n5\n"
    for name, data in tfrecord_files():
        yield "records_" + name, b"\3\0" + data
    for name, data in webdatasets():
        yield "shard_" + name, b"\4\0" + data
    array = io.BytesIO()
    np.save(array, np.arange(12, dtype=np.int16).reshape(6, 2))
    yield "array", b"\5\1" + array.getvalue()


def token_files():
    """Ids behind four bytes: width, context, stride, split."""
    ids = bytes(range(64))
    yield "u16", b"\0\3\0\1" + ids
    yield "u32", b"\1\3\2\0" + ids
    yield "llmc", b"\0\3\0\1" + struct.pack("<3I", 20240520, 1, 32) + bytes(1012) + ids
    yield "characters", "\2\2\1\4Grüße, wörld".encode()


def regions():
    """Numbers of three bytes: where a region lies, then reads (type, place, size, even, shape) and writes."""
    def small(value):
        return struct.pack(">BH", 0, value)

    yield "read", small(16) + small(256) + bytes([0]) + small(8) + small(32) + bytes([0]) + small(8) + b"\1"
    yield "write", small(0) + small(64) + bytes([1]) + small(8) + small(32) + bytes([1]) + small(20) + b"z"
    yield "outside", small(4000) + small(97)
    yield "wraps", small(16) + small(256) + bytes([0, 1, 0, 8, 0, 0, 16, 0]) + small(4) + b"\1"


def hf_directories():
    """config.json of each architecture at its smallest, an index, weights: 0xff between them."""
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
             "vocab_size": 8, "max_position_embeddings": 8, "type_vocab_size": 2}
    configs = {"bert": {"architectures": ["BertModel"], **sizes},
               "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 8,
                        "vocab_size": 8},
               "llama": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                         **sizes},
               "vit": {"architectures": ["ViTForImageClassification"], "image_size": 4, "patch_size": 2,
                       "num_channels": 3, **sizes},
               "resnet": {"architectures": ["ResNetForImageClassification"], "num_channels": 3, "embedding_size": 4,
                          "hidden_sizes": [4], "depths": [1], "layer_type": "basic"}}
    table = {"wte.weight": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}
    text = json.dumps(table).encode()
    weights = struct.pack("<Q", len(text)) + text + bytes(128)
    for name, config in configs.items():
        yield name, json.dumps({"model_type": name, **config}).encode() + b"\xff\xff" + weights
    index = json.dumps({"weight_map": {"wte.weight": "part"}}).encode()
    yield "shards", json.dumps({"model_type": "gpt2", **configs["gpt2"]}).encode() + b"\xff" + index + b"\xff" + weights


def adapters():
    """adapter_config.json and its factors, 0xff between them."""
    shapes = {"self_attn.q_proj.lora_A": [2, 4], "self_attn.q_proj.lora_B": [4, 2],
              "mlp.down_proj.lora_A": [2, 6], "mlp.down_proj.lora_B": [4, 2]}
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none",
              "target_modules": ["q_proj", "down_proj"]}
    patterns = {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 1}}
    more = {"plain": {}, "patterns": patterns, "dora": {"use_dora": True}}
    for kind, size in (("F32", 4), ("BF16", 2)):
        table, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + size * shape[0] * shape[1]
            table[f"base_model.model.model.layers.0.{name}.weight"] = {"dtype": kind, "shape": shape,
                                                                       "data_offsets": [begin, end]}
        text = json.dumps(table).encode()
        weights = struct.pack("<Q", len(text)) + text + bytes(end)
        for name, members in more.items():
            yield f"{name}_{kind.lower()}", json.dumps({**config, **members}).encode() + b"\xff" + weights


def grpc_questions():
    """(method, repetitions) as two bytes and a message: settings, parameters, names, reflection, unknown fields."""
    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    setting = field(1, field(1, b"log_info") + field(2, b"\x08\x01"))
    trace = field(1, field(1, b"trace_rate") + field(2, field(1, b"7")))
    load = field(2, b"m") + field(3, field(1, b"config") + field(2, field(3, b"{}")))
    messages = {"setting": setting, "trace": trace, "load": load, "name": field(1, b"m") + field(2, b"1"),
                "list": field(7, b"*"), "symbol": field(4, b"grpc.health.v1.Health"),
                "extension": field(5, field(1, b"x") + b"\x10\x02"), "unknown": b"\xf2\x07\x00\xf8\x07\x01",
                "group": b"\x0b\x0c", "nothing": b""}
    for number, (name, message) in enumerate(messages.items()):
        for method in range(number, 24, 5):
            yield f"{name}_{method}", bytes([method, 128 * (method % 2) + number % 8]) + message


def texts():
    """Seeds that are text: (folder, [(name, text)])."""
    yield "trace", [("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
                              "2023-11-16 18:17:04.0319600,3180,8\n"),
                    ("seconds", "timestamp,length,model\n0.5,3,a\n1.25,4,b\n"),
                    ("mooncake", '{"timestamp": 0, "input_length": 9, "model": "m"}\n{"timestamp": 27}\n'),
                    ("gaps", "100\n250\n0\n")]
    yield "kserve_generate", [("flat", ' {"text_input": "a", "x": [1, 2], "id": "7", "parameters": {"priority": 1}}'),
                              ("batched", '!{"text_input": ["a"], "x": [1e3, -2, 3, 4], "n": -3, "b": [true, false]}')]
    yield "model_load", [
        ("parameters", '@{"parameters": {"config": "{\\"max_batch_size\\": 4}", "file:1/model.onnx": "AAAA"}}'),
        ("config", 'B{"name": "m", "max_batch_size": 8, '
                   '"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}], '
                   '"dynamic_batching": {"preferred_batch_size": [4]}, "instance_group": [{"count": 2}]}'),
        ("with_file", 'A{"version_policy": {"latest": {"num_versions": 1}}, "output": [{"name": "y"}], '
                      '"parameters": {"k": {"string_value": "v"}}}')]
    yield "journal", [("other", '{"key": "other", "id": "a", "value": 1, "crc": 1}\n'), ("torn", '{"key": "key", "id')]
    yield "pbtxt", [("json", '{"name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", '
                             '"dims": [3]}], "dynamic_batching": {}}')]


def openai_requests():
    """A byte that says which kind of request it is, then its body."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": [1, "x"]}},
              "required": ["a"]}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    user = {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    return [(name, bytes([kind]) + json.dumps({"model": "m", **body}).encode()) for name, kind, body in (
        ("schema", 0, {"prompt": "x", "logit_bias": {"5": 1.5}, "logprobs": 3, "min_tokens": 2, "response_format": {
            "type": "json_schema", "json_schema": {"strict": True, "schema": schema}}}),
        ("grammar", 0, {"prompt": [1, 2], "guided_grammar": 'root ::= "a" [b-z]* (root | "c"){1,3}\n'}),
        ("choice", 0, {"prompt": [[1], [2]], "structured_outputs": {"choice": ["a", "b"]}}),
        ("calls", 1, {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required",
                      "tools": [{"type": "function", "function": function}], "guided_regex": "a+(b|c){2,3}"}),
        ("items", 2, {"input": [user, call, {"type": "function_call_output", "call_id": "1", "output": "y"}],
                      "instructions": "i", "tools": [{"type": "function", **function}],
                      "tool_choice": {"type": "function", "name": "f"},
                      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}}}),
        ("rerank", 3, {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
        ("score", 4, {"text_1": ["a", "b"], "text_2": ["c", "d"]}),
        ("embedding", 5, {"input": ["a"], "encoding_format": "base64", "dimensions": 3}))]


def served_requests():
    """A model's number, then for each extent and value an index into the target's table, or itself + 128."""
    huge, loops = 13, 12  # 2^28 and 2^24
    return [(name, bytes(data)) for name, data in (
        ("rows", [0, 129, 132, 1, 2, 3, 4]), ("no_rows", [0, 0, huge]), ("planes", [1, 129, 130, 131] + 6 * [5]),
        ("no_planes", [1, 0, huge, 1]), ("outer", [2, 133] + 5 * [9]), ("fill", [3, 140, 141]),
        ("large_fill", [3, huge, 10]),
        ("expand", [4, 129, 5, 3, huge]), ("tile", [5, 129, 5, huge]), ("loop", [6, 130, 5, 6, 135]),
        ("long_loop", [6, 129, 5, loops]), ("grow", [7, 129, 5, 138]), ("overgrow", [7, 129, 5, 7]))]


def main():
    models = [*single_models(), *old_models(), *larger_models()]
    for folder, files in (("onnx", models[-6:] + models[::6]), ("session", models), ("npy", array_files()),
                          ("safetensors", safetensors_files()), ("gguf", gguf_files()), ("idx", idx_files()),
                          ("tar", tar_files()),
                          ("tfrecord", tfrecord_files()), ("checkpoint_reader", checkpoint_indices()),
                          ("checkpoint_reader", typed_checkpoints()), ("image", pictures()), ("text_rows", row_files()),
                          ("webdataset", webdatasets()), ("row_files", files_of_rows()), ("tokens", token_files()),
                          ("shared_regions", regions()),
                          ("hf_directory", hf_directories()), ("adapter", adapters()),
                          ("served_model", served_requests()),
                          ("grpc_unary", grpc_questions()), ("openai_request", openai_requests()),
                          *((folder, [(name, text.encode()) for name, text in found]) for folder, found in texts())):
        (HERE / folder).mkdir(exist_ok=True)
        for name, data in files:
            (HERE / folder / name).write_bytes(data)


main()
