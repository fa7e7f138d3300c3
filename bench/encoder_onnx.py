"""Writes a BERT-family encoder from its Hugging Face files as ONNX, in the operators PyTorch's exporter emits.

Peers recognise these forms (erf GELU, softmax attention, separate query, key and value products), so they run it with
their own fused kernels. Outputs: last_hidden_state, and sentence_embedding = mean over kept tokens, of length one.
"""
import json
import pathlib

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file


class EncoderWriter:
    def __init__(self, directory):
        root = pathlib.Path(directory)
        self.config = json.loads((root / "config.json").read_text())
        self.weights = load_file(root / "model.safetensors")
        self.nodes, self.initializers, self.known = [], [], set()

    def op(self, kind, *inputs, **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def const(self, name, array):
        if name not in self.known:
            self.known.add(name)
            self.initializers.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))
        return name

    def number(self, value):
        return self.const(f"number_{value}", numpy.array(value, numpy.float32))

    def ints(self, *values):
        return self.const("ints_" + "_".join(map(str, values)), numpy.array(values, numpy.int64))

    def weight(self, name, transposed=False):
        array = self.weights[name].astype(numpy.float32)
        return self.const(name, array.T if transposed else array)

    def linear(self, x, name):
        return self.op("Add", self.op("MatMul", x, self.weight(name + ".weight", True)), self.weight(name + ".bias"))

    def layer_norm(self, x, name):
        epsilon = self.config["layer_norm_eps"]
        return self.op("LayerNormalization", x, self.weight(name + ".weight"), self.weight(name + ".bias"),
                       axis=-1, epsilon=epsilon)

    def heads(self, x, name, perm):
        width, count = self.config["hidden_size"], self.config["num_attention_heads"]
        split = self.op("Reshape", self.linear(x, name), self.ints(0, 0, count, width // count))
        return self.op("Transpose", split, perm=perm)

    def attention(self, x, mask, layer):
        width, count = self.config["hidden_size"], self.config["num_attention_heads"]
        inner = layer + ".attention.self."
        query = self.heads(x, inner + "query", [0, 2, 1, 3])
        key = self.heads(x, inner + "key", [0, 2, 3, 1])
        value = self.heads(x, inner + "value", [0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.number(float(width // count) ** 0.5))
        shares = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", shares, value), perm=[0, 2, 1, 3])
        joined = self.op("Reshape", mixed, self.ints(0, 0, width))
        return self.linear(joined, layer + ".attention.output.dense")

    def gelu(self, x):
        erf = self.op("Erf", self.op("Div", x, self.number(2.0 ** 0.5)))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.number(1.0))), self.number(0.5))

    def layer(self, x, mask, name):
        x = self.layer_norm(self.op("Add", self.attention(x, mask, name), x), name + ".attention.output.LayerNorm")
        inner = self.gelu(self.linear(x, name + ".intermediate.dense"))
        x = self.op("Add", self.linear(inner, name + ".output.dense"), x)
        return self.layer_norm(x, name + ".output.LayerNorm")

    def embeddings(self):
        length = self.op("Slice", self.op("Shape", "input_ids"), self.ints(1), self.ints(2), self.ints(0))
        positions = self.op("Slice", self.weight("embeddings.position_embeddings.weight"), self.ints(0), length,
                            self.ints(0))
        words = self.op("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids", axis=0)
        kind = self.const("token_type_0", self.weights["embeddings.token_type_embeddings.weight"][:1])
        return self.layer_norm(self.op("Add", self.op("Add", words, kind), positions), "embeddings.LayerNorm")

    def pooled(self, x, kept):
        weights = self.op("Unsqueeze", kept, self.ints(-1))
        total = self.op("ReduceSum", self.op("Mul", x, weights), self.ints(1), keepdims=0)
        count = self.op("Clip", self.op("ReduceSum", weights, self.ints(1), keepdims=0), self.number(1e-9))
        mean = self.op("Div", total, count)
        length = self.op("Clip", self.op("ReduceL2", mean, axes=[1], keepdims=1), self.number(1e-12))
        return self.op("Div", mean, length)

    def write(self, path):
        kept = self.op("Cast", "attention_mask", to=TensorProto.FLOAT)
        dropped = self.op("Sub", self.number(1.0), self.op("Unsqueeze", kept, self.ints(1, 2)))
        mask = self.op("Mul", dropped, self.number(float(numpy.finfo(numpy.float32).min)))
        x = self.embeddings()
        for i in range(self.config["num_hidden_layers"]):
            x = self.layer(x, mask, f"encoder.layer.{i}")
        embedding = self.pooled(x, kept)
        for name, source in (("last_hidden_state", x), ("sentence_embedding", embedding)):
            self.nodes.append(helper.make_node("Identity", [source], [name]))
        width = self.config["hidden_size"]
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"])
                  for n in ("input_ids", "attention_mask")]
        outputs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "seq", width]),
                   helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", width])]
        graph = helper.make_graph(self.nodes, "encoder", inputs, outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def write_encoder(directory, path):
    """Writes the encoder in `directory` (config.json, model.safetensors) to the file `path`."""
    EncoderWriter(directory).write(path)
