# The model repository of the public Triton client examples, rebuilt: names, configs and arithmetic as clients expect.
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from _serving import save, value

INT32, UINT32, UINT64, INT8 = TensorProto.INT32, TensorProto.UINT32, TensorProto.UINT64, TensorProto.INT8
STRING, FLOAT = TensorProto.STRING, TensorProto.FLOAT


def tensors(kind, entries):
    return "".join(f'{kind} {{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] {more} }}\n'
                   for name, dtype, dims, more in entries)


def write(repository, name, config, nodes, inputs, outputs, initializers=()):
    save(nodes, inputs, outputs, repository / name / "1" / "model.onnx", initializers)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nplatform: "onnxruntime_onnx"\n' + config)


def add_arithmetic(repository, name, dtype, kind):
    """INPUT0 and INPUT1 [batch, 16]: sum and difference; strings are decimal numbers, int8 counts in int32."""
    nodes, casts = [], kind != INT32
    for i in (0, 1):
        if casts:
            nodes.append(helper.make_node("Cast", [f"INPUT{i}"], [f"number{i}"], to=INT32))
    names = ["number0", "number1"] if casts else ["INPUT0", "INPUT1"]
    for op, output in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1")):
        nodes.append(helper.make_node(op, names, ["whole" + output if casts else output]))
        if casts:
            nodes.append(helper.make_node("Cast", ["whole" + output], [output], to=kind))
    config = "max_batch_size: 8\n" + tensors("input", [(f"INPUT{i}", dtype, "16", "") for i in (0, 1)])
    config += tensors("output", [(f"OUTPUT{i}", dtype, "16", "") for i in (0, 1)])
    write(repository, name, config, nodes, [value(f"INPUT{i}", kind, ["batch", 16]) for i in (0, 1)],
          [value(f"OUTPUT{i}", kind, ["batch", 16]) for i in (0, 1)])


def add_identity(repository, name="simple_identity", dtype="STRING", kind=STRING):
    config = "max_batch_size: 8\n" + tensors("input", [("INPUT0", dtype, "-1", "")]) + tensors(
        "output", [("OUTPUT0", dtype, "-1", "")])
    write(repository, name, config, [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
          [value("INPUT0", kind, ["batch", "n"])], [value("OUTPUT0", kind, ["batch", "n"])])


def control(name, kind, dtype=None):
    value_text = f"data_type: TYPE_{dtype}" if dtype else "int32_false_true: [ 0, 1 ]"
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {value_text} }} }}\n'


NUMBER = "max_batch_size: 8\n" + tensors("input", [("INPUT", "INT32", "1", "")]) + tensors(
    "output", [("OUTPUT", "INT32", "1", "")])


def columns(*names, kind=INT32):
    return [value(name, kind, ["batch", 1]) for name in names]


def add_sequence(repository, name="simple_sequence"):
    """OUTPUT = (INPUT + START) * READY."""
    write(repository, name, NUMBER + "sequence_batching { direct { }\n" + control("START", "START") +
          control("READY", "READY") + "}\n",
          [helper.make_node("Add", ["INPUT", "START"], ["sum"]), helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"])],
          columns("INPUT", "START", "READY"), columns("OUTPUT"))


OLDEST = """instance_group { count: 2 kind: KIND_CPU }
sequence_batching { max_sequence_idle_microseconds: 10000000
  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }
""" + control("START", "START") + control("READY", "READY") + control("END", "END")


def add_dyna_sequence(repository, name="simple_dyna_sequence"):
    """OUTPUT = (INPUT + START + int32(CORRID) * END) * READY."""
    write(repository, name, NUMBER + OLDEST + control("CORRID", "CORRID", "UINT64") + "}\n",
          [helper.make_node("Cast", ["CORRID"], ["id"], to=INT32), helper.make_node("Mul", ["id", "END"], ["last"]),
           helper.make_node("Add", ["INPUT", "START"], ["sum"]), helper.make_node("Add", ["sum", "last"], ["all"]),
           helper.make_node("Mul", ["all", "READY"], ["OUTPUT"])],
          columns("INPUT", "START", "END", "READY") + columns("CORRID", kind=UINT64), columns("OUTPUT"))


def add_string_dyna_sequence(repository, name="simple_string_dyna_sequence"):
    """OUTPUT = sum so far + INPUT, plus the number that the text CORRID spells at the end."""
    state = 'state { input_name: "total_in" output_name: "total_out" data_type: TYPE_INT32 dims: 1 }\n'
    write(repository, name, NUMBER + OLDEST + control("CORRID", "CORRID", "STRING") + state + "}\n",
          [helper.make_node("Cast", ["CORRID"], ["id"], to=INT32), helper.make_node("Mul", ["id", "END"], ["last"]),
           helper.make_node("Mul", ["INPUT", "READY"], ["input"]),
           helper.make_node("Mul", ["START", "total_in"], ["old"]),
           helper.make_node("Sub", ["total_in", "old"], ["kept"]), helper.make_node("Add", ["kept", "input"], ["sum"]),
           helper.make_node("Add", ["sum", "last"], ["OUTPUT"]),
           helper.make_node("Identity", ["OUTPUT"], ["total_out"])],
          columns("INPUT", "START", "END", "READY", "total_in") + columns("CORRID", kind=STRING),
          columns("OUTPUT", "total_out"))


def add_seven(repository):
    """The seven models that the model-control examples count."""
    add_arithmetic(repository, "simple", "INT32", INT32)
    add_arithmetic(repository, "simple_int8", "INT8", INT8)
    add_arithmetic(repository, "simple_string", "STRING", STRING)
    add_identity(repository)
    add_sequence(repository)
    add_dyna_sequence(repository)
    add_string_dyna_sequence(repository)


DECOUPLED = """max_batch_size: 0
model_transaction_policy { decoupled: true }
parameters { key: "stream_rows" value { string_value: "true" } }
"""


def add_repeat(repository, name="repeat_int32"):
    """IN [n] gives n answers: OUT its element, IDX the place. Nobody reads DELAY and WAIT: all answers are there."""
    constants = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in
                 (("zero", 0), ("one", 1), ("axis0", [0]), ("axis1", [1]))]
    nodes = [helper.make_node("Unsqueeze", ["IN", "axis1"], ["OUT"]), helper.make_node("Shape", ["IN"], ["shape"]),
             helper.make_node("Squeeze", ["shape", "axis0"], ["count"]),
             helper.make_node("Range", ["zero", "count", "one"], ["places"]),
             helper.make_node("Unsqueeze", ["places", "axis1"], ["column"]),
             helper.make_node("Cast", ["column"], ["IDX"], to=UINT32)]
    config = DECOUPLED + tensors("input", [("IN", "INT32", "-1", ""), ("DELAY", "UINT32", "-1", ""),
                                           ("WAIT", "UINT32", "1", "")]) + tensors(
        "output", [("OUT", "INT32", "1", ""), ("IDX", "UINT32", "1", "")])
    write(repository, name, config, nodes,
          [value("IN", INT32, ["n"]), value("DELAY", UINT32, ["d"]), value("WAIT", UINT32, [1])],
          [value("OUT", INT32, ["n", 1]), value("IDX", UINT32, ["n", 1])], constants)


def add_square(repository, name="square_int32"):
    """IN [1] gives as many answers as it says, each the number itself: none for 0."""
    constants = [numpy_helper.from_array(np.array([1], np.int64), "one")]
    nodes = [helper.make_node("Cast", ["IN"], ["count"], to=TensorProto.INT64),
             helper.make_node("Concat", ["count", "one"], ["shape"], axis=0),
             helper.make_node("Expand", ["IN", "shape"], ["OUT"])]
    config = DECOUPLED + tensors("input", [("IN", "INT32", "1", "")]) + tensors("output", [("OUT", "INT32", "1", "")])
    write(repository, name, config, nodes, [value("IN", INT32, [1])], [value("OUT", INT32, [None, 1])], constants)


def colour_weights(classes, seed):
    """[classes, 3]: a classifier of mean colours, small and not degenerate."""
    return numpy_helper.from_array(np.random.default_rng(seed).normal(size=(classes, 3)).astype(np.float32), "w")


def write_labels(repository, name, classes):
    (repository / name / "labels.txt").write_text("".join(f"class {i}\n" for i in range(classes)))


def add_densenet(repository, name="densenet_onnx"):
    """FP32 [3,224,224] -> [1000]: the shapes, names, reshapes and labels of the example; a small classifier inside."""
    config = """max_batch_size: 0
input { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ]
  reshape { shape: [ 1, 3, 224, 224 ] } }
output { name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] reshape { shape: [ 1, 1000, 1, 1 ] }
  label_filename: "labels.txt" }
"""
    write(repository, name, config,
          [helper.make_node("GlobalAveragePool", ["data_0"], ["mean"]),
           helper.make_node("Conv", ["mean", "w"], ["fc6_1"])],
          [value("data_0", FLOAT, [1, 3, 224, 224])], [value("fc6_1", FLOAT, [1, 1000, 1, 1])],
          [numpy_helper.from_array(numpy_helper.to_array(colour_weights(1000, 1)).reshape(1000, 3, 1, 1), "w")])
    write_labels(repository, name, 1000)


def add_inception(repository, name="inception_onnx"):
    """FP32 NHWC [299,299,3] -> [1001]."""
    config = """max_batch_size: 128
input { name: "input" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 299, 299, 3 ] }
output { name: "InceptionV3/Predictions/Softmax" data_type: TYPE_FP32 dims: [ 1001 ] label_filename: "labels.txt" }
"""
    weights = numpy_helper.from_array(numpy_helper.to_array(colour_weights(1001, 2)).T.copy(), "w")
    write(repository, name, config,
          [helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1, 2], keepdims=0),
           helper.make_node("MatMul", ["mean", "w"], ["scores"]),
           helper.make_node("Softmax", ["scores"], ["InceptionV3/Predictions/Softmax"], axis=1)],
          [value("input", FLOAT, ["batch", 299, 299, 3])],
          [value("InceptionV3/Predictions/Softmax", FLOAT, ["batch", 1001])],
          [weights])
    write_labels(repository, name, 1001)


def add_image_ensemble(repository, name="preprocess_inception_ensemble"):
    """Picture files in, classes out: a model that only decodes, then inception_onnx."""
    config = """max_batch_size: 128
input { name: "INPUT" data_type: TYPE_STRING dims: 1 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 299, 299, 3 ] }
parameters { key: "image_input" value { string_value: "inception" } }
"""
    write(repository, "preprocess", config, [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
          [value("INPUT", FLOAT, ["batch", 299, 299, 3])], [value("OUTPUT", FLOAT, ["batch", 299, 299, 3])])
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f"""name: "{name}" platform: "ensemble" max_batch_size: 128
input {{ name: "INPUT" data_type: TYPE_STRING dims: 1 }}
output {{ name: "OUTPUT" data_type: TYPE_FP32 dims: 1001 label_filename: "labels.txt" }}
ensemble_scheduling {{ step {{ model_name: "preprocess" model_version: -1
    input_map {{ key: "INPUT" value: "INPUT" }} output_map {{ key: "OUTPUT" value: "pixels" }} }}
  step {{ model_name: "inception_onnx" model_version: -1 input_map {{ key: "input" value: "pixels" }}
    output_map {{ key: "InceptionV3/Predictions/Softmax" value: "OUTPUT" }} }} }}
""")
    write_labels(repository, name, 1001)
