"""Models of ./dev bench serve in files, and one request to each of them in bytes: HTTP binary, JSON, gRPC."""
import json
import os
import pathlib
import struct
import subprocess

import numpy
import onnx
from onnx import TensorProto, helper

from encoder_onnx import write_encoder

TYPES = {"float32": ("FP32", TensorProto.FLOAT), "int64": ("INT64", TensorProto.INT64)}


class Model:
    """A model that all servers serve: its file, one request's inputs, the output that is asked for."""

    def __init__(self, name, path, inputs, output, output_shape, computes):
        self.name, self.path, self.inputs, self.output = name, path, inputs, output
        self.output_shape, self.computes = output_shape, computes  # of one item; False: servers alone are measured

    def tensors(self):
        return [(name, TYPES[a.dtype.name][0], list(a.shape), numpy.ascontiguousarray(a).tobytes())
                for name, a in self.inputs.items()]

    def answer_bytes(self):
        return 4 * int(numpy.prod(self.output_shape))


def save(nodes, inputs, outputs, path, initializers=()):
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def floats(name, dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def identity(folder):
    path = folder / "identity.onnx"
    save([helper.make_node("Identity", ["x"], ["y"])], [floats("x", ["n", 16])], [floats("y", ["n", 16])], path)
    values = numpy.random.default_rng(1).standard_normal((1, 16)).astype(numpy.float32)
    return Model("identity", path, {"x": values}, "y", [16], False)


def image(folder):
    """An image in, its first value out: what is left is the server."""
    path = folder / "image.onnx"
    bounds = {"from": [0, 0, 0], "to": [1, 1, 1], "axes": [1, 2, 3]}
    constants = [onnx.numpy_helper.from_array(numpy.array(v, numpy.int64), k) for k, v in bounds.items()]
    nodes = [helper.make_node("Slice", ["x", *bounds], ["z"]), helper.make_node("Flatten", ["z"], ["y"])]
    save(nodes, [floats("x", ["n", 3, 224, 224])], [floats("y", ["n", 1])], path, constants)
    values = numpy.random.default_rng(1).random((1, 3, 224, 224), dtype=numpy.float32)
    return Model("image", path, {"x": values}, "y", [1], False)


def network(folder):
    """MobileNetV2 of the shared data, else ResNet-18 of our zoo."""
    data = os.environ.get("TRIREME_SHARED_DATA")
    name, path = "mobilenetv2", pathlib.Path(data or ".") / "onnx-models/mobilenetv2_fp32_derived/model.onnx"
    if not data or not path.exists():
        name, path = "resnet18", folder / "resnet18.onnx"
        subprocess.run([os.environ["TRIREME"], "export", "zoo:resnet18", path], check=True)
    graph = onnx.load(str(path), load_external_data=False).graph
    known = {t.name for t in graph.initializer}
    given = next(v for v in graph.input if v.name not in known)
    dims = [d.dim_value for d in given.type.tensor_type.shape.dim][1:]
    out = graph.output[0]
    shape = [d.dim_value for d in out.type.tensor_type.shape.dim][1:]
    values = numpy.random.default_rng(1).random([1] + dims, dtype=numpy.float32)
    return Model(name, path, {given.name: values}, out.name, shape, True)


def encoder(folder, tokens):
    """all-MiniLM-L6-v2 as ONNX; None where its files are not installed."""
    source = os.environ.get("TRIREME_ENCODER")
    if not source:
        return None
    path = folder / "minilm.onnx"
    write_encoder(source, path)
    ids = numpy.random.default_rng(1).integers(1000, 20000, (1, tokens)).astype(numpy.int64)
    inputs = {"input_ids": ids, "attention_mask": numpy.ones_like(ids)}
    return Model("minilm", path, inputs, "sentence_embedding", [384], True)


def find_models(folder, tokens):
    models = [identity(folder), image(folder), network(folder), encoder(folder, tokens)]
    return {m.name: m for m in models if m is not None}


def http_binary(model):
    """(body, headers): the binary extension, answer in binary too."""
    inputs = [{"name": n, "datatype": t, "shape": s, "parameters": {"binary_data_size": len(raw)}}
              for n, t, s, raw in model.tensors()]
    outputs = [{"name": model.output, "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": inputs, "outputs": outputs}, separators=(",", ":")).encode()
    body = head + b"".join(raw for *_, raw in model.tensors())
    return body, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}


def http_json(model):
    inputs = [{"name": n, "datatype": TYPES[a.dtype.name][0], "shape": list(a.shape), "data": a.reshape(-1).tolist()}
              for n, a in model.inputs.items()]
    body = json.dumps({"inputs": inputs, "outputs": [{"name": model.output}]}, separators=(",", ":")).encode()
    return body, {"Content-Type": "application/json"}


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    """A length-delimited field of protobuf's wire format."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def grpc_message(model):
    """A ModelInferRequest behind the five bytes that gRPC puts before a message."""
    message = field(1, model.name.encode())
    for name, kind, shape, _ in model.tensors():
        dims = b"".join(varint(d) for d in shape)
        message += field(5, field(1, name.encode()) + field(2, kind.encode()) + field(3, dims))
    message += field(6, field(1, model.output.encode()))
    for *_, raw in model.tensors():
        message += field(7, raw)
    return b"\0" + struct.pack(">I", len(message)) + message
