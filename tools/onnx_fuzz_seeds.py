# Writes the small models from which the fuzzer of the ONNX importer starts: one for each thing a file can hold.
#
#   python tools/onnx_fuzz_seeds.py tests/fuzz/onnx
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name, kind=FLOAT, shape=(2,)):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, opset=17, functions=(), initializers=(), **extra):
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=list(initializers), **extra)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)


def seeds():
    x, y = value("x"), value("y")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    raw = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    yield "raw", model([add], [x], [y], initializers=[raw])
    yield "typed", model([add], [x], [y], initializers=[helper.make_tensor("w", FLOAT, [2], [1, 2])])
    small = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3])
    yield "int4", model([helper.make_node("Cast", ["w"], ["y"], to=FLOAT)], [], [value("y", FLOAT, (3,))], 21,
                        initializers=[small])
    outside = TensorProto(name="w", data_type=FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "../w.bin"), ("offset", "4"), ("length", "8")):
        outside.external_data.add(key=key, value=text)
    yield "external", model([add], [x], [y], initializers=[outside])
    sparse = helper.make_sparse_tensor(helper.make_tensor("w", FLOAT, [1], [3]),
                                       helper.make_tensor("i", INT64, [1], [1]), [2])
    yield "sparse", model([add], [x], [y], sparse_initializer=[sparse])

    branches = {f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], ["r"])], name, [], [value("r")])
                for name, op in (("then", "Neg"), ("else", "Abs"))}
    yield "if", model([helper.make_node("If", ["c"], ["y"], **branches)], [value("c", BOOL, ()), x], [y])
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["go_on"]),
                              helper.make_node("Add", ["h", "x"], ["next"]),
                              helper.make_node("Identity", ["next"], ["seen"])], "body",
                             [value("i", INT64, ()), value("go", BOOL, ()), value("h")],
                             [value("go_on", BOOL, ()), value("next"), value("seen")])
    yield "loop", model([helper.make_node("Loop", ["n", "", "x"], ["last", "y"], body=body)],
                        [value("n", INT64, ()), x], [value("y", FLOAT, (None, 2))])
    step = helper.make_graph([helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
                             "step", [value("s", FLOAT, ()), value("e", FLOAT, ())],
                             [value("t", FLOAT, ()), value("o", FLOAT, ())])
    yield "scan", model([helper.make_node("Scan", ["z", "x"], ["last", "y"], body=step, num_scan_inputs=1)],
                        [value("z", FLOAT, ()), x], [y])

    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    function = helper.make_function("my", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], ["slope"])
    yield "function", model([helper.make_node("F", ["x"], ["y"], domain="my", slope=0.5)], [x], [y],
                            functions=[function])

    image, large = value("x", FLOAT, (1, 4, 4, 4)), value("y", FLOAT, None)
    old = [helper.make_node("Upsample", ["x"], ["u"], scales=[1.0, 1.0, 2.0, 2.0]),
           helper.make_node("Pad", ["u"], ["p"], pads=[0, 0, 1, 1, 0, 0, 1, 1]),
           helper.make_node("Slice", ["p"], ["s"], starts=[0], ends=[2], axes=[1]),
           helper.make_node("Softmax", ["s"], ["m"], axis=1),
           helper.make_node("ReduceMean", ["m"], ["r"], axes=[2], keepdims=0),
           helper.make_node("TopK", ["r"], ["y", "i"], k=1)]
    yield "old", model(old, [image], [large], 7)
    quantized = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
                 helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])]
    yield "qdq", model(quantized, [x], [y], initializers=[helper.make_tensor("scale", FLOAT, [], [0.5]),
                                                         helper.make_tensor("zero", TensorProto.UINT8, [], [128])])
    shape = [helper.make_node("Shape", ["x"], ["d"]), helper.make_node("Gather", ["d", "one"], ["n"]),
             helper.make_node("Unsqueeze", ["n", "zero"], ["n1"]),
             helper.make_node("Concat", ["n1", "rest"], ["s"], axis=0),
             helper.make_node("Reshape", ["x", "s"], ["y"])]
    numbers = [helper.make_tensor("one", INT64, [], [1]), helper.make_tensor("zero", INT64, [1], [0]),
               helper.make_tensor("rest", INT64, [1], [-1])]
    yield "shapes", model(shape, [value("x", FLOAT, ("n", 4))], [large], initializers=numbers)


def main():
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, proto in seeds():
        (target / f"{name}.onnx").write_bytes(proto.SerializeToString())


main()
