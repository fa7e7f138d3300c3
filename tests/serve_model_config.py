# Every field of ModelConfig, through a real server: honoured or refused by name, as docs/model-config.md says.
import re
import shutil

import numpy as np
import tritonclient.grpc as triton
from onnx import TensorProto, helper

from _serving import ROOT, Server, run_cases, save, temporary, value

repository = temporary()
IO = """input { name: "x" data_type: TYPE_FP32 dims: 4 %s } output { name: "y" data_type: TYPE_FP32 dims: 4 %s } """
GROUP = "instance_group { %s }"
BATCHING = "dynamic_batching { %s }"
SEQUENCE = 'sequence_batching { %s control_input { name: "s" control { kind: %s } } }'
# The field -> a configuration that uses it. Those of sequences get a model with a control and a state.
CASES = {
    "name": 'name: "%(name)s"',
    "platform": 'platform: "onnxruntime_onnx"',
    "backend": 'backend: "onnxruntime"',
    "version_policy.latest": "version_policy { latest { num_versions: 1 } }",
    "version_policy.all": "version_policy { all { } }",
    "version_policy.specific": "version_policy { specific { versions: 1 } }",
    "max_batch_size": "max_batch_size: 3",
    "input.name": IO % ("", ""),
    "input.data_type": IO % ("", ""),
    "input.dims": IO % ("", ""),
    "input.format": 'input { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [1, 2, 2] '
                    'reshape { shape: 4 } }',
    "input.reshape": 'input { name: "x" data_type: TYPE_FP32 dims: [2, 2] reshape { shape: 4 } }',
    "input.is_shape_tensor": IO % ("is_shape_tensor: true", ""),
    "input.allow_ragged_batch": IO % ("allow_ragged_batch: true", ""),
    "input.optional": IO % ("optional: true", ""),
    "input.is_non_linear_format_io": IO % ("is_non_linear_format_io: true", ""),
    "output.name": IO % ("", ""),
    "output.data_type": IO % ("", ""),
    "output.dims": IO % ("", ""),
    "output.label_filename": IO % ("", 'label_filename: "labels.txt"'),
    "output.reshape": 'output { name: "y" data_type: TYPE_FP32 dims: [2, 2] reshape { shape: 4 } }',
    "output.is_shape_tensor": IO % ("", "is_shape_tensor: true"),
    "output.is_non_linear_format_io": IO % ("", "is_non_linear_format_io: true"),
    "batch_input": 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "x" }',
    "batch_output": 'batch_output { target_name: "y" }',
    "optimization.graph.level": "optimization { graph { level: 1 } }",
    "optimization.priority": "optimization { priority: PRIORITY_MAX }",
    "optimization.cuda": "optimization { cuda { graphs: true } }",
    "optimization.execution_accelerators":
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
    "optimization.input_pinned_memory": "optimization { input_pinned_memory { enable: true } }",
    "optimization.output_pinned_memory": "optimization { output_pinned_memory { enable: false } }",
    "optimization.gather_kernel_buffer_threshold": "optimization { gather_kernel_buffer_threshold: 9 }",
    "optimization.eager_batching": "optimization { eager_batching: true }",
    "dynamic_batching.preferred_batch_size": BATCHING % "preferred_batch_size: 2",
    "dynamic_batching.max_queue_delay_microseconds": BATCHING % "max_queue_delay_microseconds: 5",
    "dynamic_batching.preserve_ordering": BATCHING % "preserve_ordering: true",
    "dynamic_batching.priority_levels": BATCHING % "priority_levels: 2 default_priority_level: 1",
    "dynamic_batching.default_priority_level": BATCHING % "priority_levels: 2 default_priority_level: 2",
    "dynamic_batching.default_queue_policy": BATCHING % "default_queue_policy { timeout_action: DELAY "
                                             "default_timeout_microseconds: 9 allow_timeout_override: true "
                                             "max_queue_size: 7 }",
    "dynamic_batching.priority_queue_policy": BATCHING % "priority_levels: 2 default_priority_level: 2 "
                                              "priority_queue_policy { key: 1 value { max_queue_size: 7 } }",
    "instance_group.name": GROUP % 'name: "g"',
    "instance_group.kind: KIND_CPU": GROUP % "kind: KIND_CPU",
    "instance_group.kind: KIND_AUTO": GROUP % "kind: KIND_AUTO",
    "instance_group.kind: KIND_MODEL": GROUP % "kind: KIND_MODEL",
    "instance_group.kind: KIND_GPU": GROUP % "kind: KIND_GPU",
    "instance_group.count": GROUP % "count: 2",
    "instance_group.rate_limiter": GROUP % 'rate_limiter { resources { name: "R" count: 1 } priority: 2 }',
    "instance_group.gpus": GROUP % "gpus: [ 0 ]",
    "instance_group.secondary_devices": GROUP % "secondary_devices { kind: KIND_NVDLA device_id: 0 }",
    "instance_group.profile": GROUP % 'profile: "1"',
    "instance_group.passive": GROUP % "passive: true",
    "instance_group.host_policy": GROUP % 'host_policy: "p"',
    "default_model_filename": 'default_model_filename: "model.onnx"',
    "cc_model_filenames": 'cc_model_filenames { key: "8.0" value: "a" }',
    "metric_tags": 'metric_tags { key: "team" value: "a" }',
    "parameters": 'parameters { key: "a" value { string_value: "b" } }',
    "model_warmup": 'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 '
                    "dims: 4 zero_data: true } } }",
    "model_operations": 'model_operations { op_library_filename: "a.so" }',
    "model_transaction_policy.decoupled": "model_transaction_policy { decoupled: true }",
    "model_repository_agents": 'model_repository_agents { agents { name: "a" } }',
    "response_cache": "response_cache { enable: true }",
    "runtime": 'runtime: "x"',
    "model_metrics": 'model_metrics { metric_control { metric_identifier { family: "a" } } }',
    "sequence_batching.direct": SEQUENCE % ("direct { max_queue_delay_microseconds: 5 }",
                                            "CONTROL_SEQUENCE_START int32_false_true: [0, 1]"),
    "sequence_batching.direct.minimum_slot_utilization": SEQUENCE % (
        "direct { minimum_slot_utilization: 0.5 }", "CONTROL_SEQUENCE_START int32_false_true: [0, 1]"),
    "sequence_batching.oldest": SEQUENCE % ("oldest { max_candidate_sequences: 9 preferred_batch_size: 2 "
                                            "max_queue_delay_microseconds: 5 }",
                                            "CONTROL_SEQUENCE_END int32_false_true: [0, 1]"),
    "sequence_batching.oldest.preserve_ordering": SEQUENCE % ("oldest { preserve_ordering: true }",
                                                              "CONTROL_SEQUENCE_END int32_false_true: [0, 1]"),
    "sequence_batching.max_sequence_idle_microseconds": SEQUENCE % (
        "max_sequence_idle_microseconds: 9", "CONTROL_SEQUENCE_READY int32_false_true: [0, 1]"),
    "sequence_batching.control_input": SEQUENCE % ("", "CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32"),
    "sequence_batching.state": 'sequence_batching { state { input_name: "s" output_name: "t" data_type: '
                               "TYPE_INT32 dims: 1 initial_state { data_type: TYPE_INT32 dims: 1 "
                               'zero_data: true name: "i" } } }',
    "sequence_batching.state.use_same_buffer_for_input_output":
        'sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_INT32 dims: 1 '
        "use_same_buffer_for_input_output: true } }",
    "sequence_batching.state.use_growable_memory":
        'sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_INT32 dims: 1 '
        "use_growable_memory: true } }",
    "sequence_batching.iterative_sequence": "sequence_batching { iterative_sequence: true }",
    "ensemble_scheduling.step": 'platform: "ensemble" ensemble_scheduling { step { model_name: "m_name" '
                                'model_version: -1 input_map { key: "x" value: "x" } '
                                'output_map { key: "y" value: "y" } } }' + IO % ("", "") + "max_batch_size: 4",
    "ensemble_scheduling.step.model_namespace":
        'platform: "ensemble" ensemble_scheduling { step { model_name: "m_name" model_namespace: "n" '
        'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }',
    "ensemble_scheduling.max_inflight_requests":
        'platform: "ensemble" ensemble_scheduling { max_inflight_requests: 3 step { model_name: "m_name" '
        'model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }' +
        IO % ("", "") + "max_batch_size: 4",
    "nonsense": "nonsense: 1",
}


def model_name(field):
    return "m_" + re.sub(r"\W+", "_", field)


def add(field, text):
    name = model_name(field)
    model = repository / name / "1" / "model.onnx"
    if text.startswith("sequence"):
        two = [value(n, TensorProto.INT32, ["batch", 1]) for n in ("x", "s")]
        save([helper.make_node("Add", ["x", "s"], ["y"]), helper.make_node("Identity", ["y"], ["t"])], two,
             [value(n, TensorProto.INT32, ["batch", 1]) for n in ("y", "t")], model)
    elif "ensemble" in text:
        model.parent.mkdir(parents=True)
    else:
        save([helper.make_node("Relu", ["x"], ["y"])], [value("x", TensorProto.FLOAT, ["batch", 4])],
             [value("y", TensorProto.FLOAT, ["batch", 4])], model)
    (repository / name / "labels.txt").write_text("a\nb\nc\nd\n")
    text = text.replace("%(name)s", name)
    if "max_batch_size" not in text:
        text = "max_batch_size: 4\n" + text
    (repository / name / "config.pbtxt").write_text(text)


def documented():
    """field -> honoured, of the table in the docs."""
    rows = re.findall(r"^\| `([^`]+)` \| (honoured|refused) \|", (ROOT / "docs/model-config.md").read_text(), re.M)
    assert len(dict(rows)) == len(rows), "a field is there twice"
    return {field: word == "honoured" for field, word in rows}


for _field, _text in CASES.items():
    add(_field, _text)
save([helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Identity", ["z"], ["y"]),
      helper.make_node("Abs", ["x"], ["other"])], [value("x", TensorProto.FLOAT, ["batch", 4])],
     [value(n, TensorProto.FLOAT, ["batch", 4]) for n in ("other", "z", "y")],
     repository / "one_output" / "1" / "model.onnx")
(repository / "one_output" / "config.pbtxt").write_text(
    'max_batch_size: 8 output { name: "y" data_type: TYPE_FP32 dims: 4 }')
add("whole_dims", 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }')
(repository / "m_whole_dims").rename(repository / "whole_dims")
(repository / "whole_dims" / "config.pbtxt").write_text(
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }')
server = Server(repository, "--threads", "1")
client = triton.InferenceServerClient(server.grpc_address)


def docs_list_the_same_fields():
    assert set(documented()) == set(CASES) - {"nonsense"}, set(documented()) ^ (set(CASES) - {"nonsense"})


def each_field_is_as_documented():
    index = {m.name: m for m in client.get_model_repository_index().models}
    wrong = []
    for field, is_honoured in {**documented(), "nonsense": False}.items():
        entry = index[model_name(field)]
        named = field.replace(": ", " ") in entry.reason
        if (entry.state == "READY") != is_honoured or (not is_honoured and not named):
            wrong.append((field, entry.state, entry.reason))
    assert not wrong, wrong


def what_is_honoured_shows():
    def config(field):
        return client.get_model_config(model_name(field)).config

    assert config("dynamic_batching.preserve_ordering").dynamic_batching.preserve_ordering
    assert config("instance_group.rate_limiter").instance_group[0].rate_limiter.resources[0].name == "R"
    assert config("instance_group.rate_limiter").instance_group[0].rate_limiter.priority == 2
    assert list(config("input.reshape").input[0].reshape.shape) == [4]
    assert config("input.format").input[0].format == 2
    assert config("default_model_filename").default_model_filename == "model.onnx"


def reshapes():
    x = np.array([[[-1, 2], [3, -4]], [[5, -6], [-7, 8]]], np.float32)
    t = triton.InferInput("x", [2, 2, 2], "FP32")
    t.set_data_from_numpy(x)
    got = client.infer(model_name("input.reshape"), [t]).as_numpy("y")
    np.testing.assert_array_equal(got, np.maximum(x, 0).reshape(2, 4))
    t = triton.InferInput("x", [2, 4], "FP32")
    t.set_data_from_numpy(x.reshape(2, 4))
    got = client.infer(model_name("output.reshape"), [t]).as_numpy("y")
    np.testing.assert_array_equal(got, np.maximum(x, 0))
    meta = client.get_model_metadata(model_name("output.reshape"))
    assert list(meta.outputs[0].shape) == [-1, 2, 2], meta


def partial_outputs():
    """Outputs that the config does not name are not there, and not computed."""
    assert [o.name for o in client.get_model_metadata("one_output").outputs] == ["y"]
    x = triton.InferInput("x", [2, 4], "FP32")
    x.set_data_from_numpy(np.ones((2, 4), np.float32))
    got = client.infer("one_output", [x])
    assert [o.name for o in got.get_response().outputs] == ["y"], got.get_response()
    np.testing.assert_array_equal(got.as_numpy("y"), np.full((2, 4), -1, np.float32))


def whole_dims():
    """Without max_batch_size, dims that name all of the model's are all of a request's."""
    config = client.get_model_config("whole_dims").config
    assert config.max_batch_size == 0 and list(config.input[0].dims) == [-1, 4], config
    x = triton.InferInput("x", [3, 4], "FP32")
    x.set_data_from_numpy(np.ones((3, 4), np.float32))
    assert client.infer("whole_dims", [x]).as_numpy("y").shape == (3, 4)


try:
    run_cases([(case.__name__, case) for case in (docs_list_the_same_fields, each_field_is_as_documented,
                                                  what_is_honoured_shows, reshapes, partial_outputs,
                                                  whole_dims)])
finally:
    server.stop()
    shutil.rmtree(repository, ignore_errors=True)
