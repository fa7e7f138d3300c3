# Ensembles: results, the hand-off of tensors, statistics of the whole and of its steps, and every way to be refused.
import shutil
import threading

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _serving import Server, add_slow, run_cases, save, temporary, value

FLOAT = TensorProto.FLOAT
repository = temporary()


def tensors(*names):
    return [value(name, FLOAT, ["batch", 4]) for name in names]


def add(name, nodes, inputs, outputs):
    save(nodes, tensors(*inputs), tensors(*outputs), repository / name / "1" / "model.onnx")


def ensemble(name, steps, inputs=("X", ), outputs=("Y", ), extra="", head="max_batch_size: 8\n"):
    (repository / name / "1").mkdir(parents=True)
    text = 'platform: "ensemble"\n' + head
    for kind, names in (("input", inputs), ("output", outputs)):
        text += "".join(f'{kind} {{ name: "{n}" data_type: TYPE_FP32 dims: 4 }}\n' for n in names)
    text += "ensemble_scheduling { " + extra
    for model, ins, outs in steps:
        text += f'step {{ model_name: "{model}" model_version: -1 '
        text += "".join(f'input_map {{ key: "{k}" value: "{v}" }} ' for k, v in ins.items())
        text += "".join(f'output_map {{ key: "{k}" value: "{v}" }} ' for k, v in outs.items()) + "}\n"
    (repository / name / "config.pbtxt").write_text(text + "}\n")


add("double", [helper.make_node("Add", ["x", "x"], ["y"])], ["x"], ["y"])
add("negate", [helper.make_node("Neg", ["x"], ["y"])], ["x"], ["y"])
add("both", [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Mul", ["a", "b"], ["product"])],
    ["a", "b"], ["sum", "product"])
# X -> double -> D; X -> negate -> N; (D, N) -> both -> Y, Z.  Y = 2x - x, Z = -2 x^2
DIAMOND = [("both", {"a": "D", "b": "N"}, {"sum": "Y", "product": "Z"}), ("double", {"x": "X"}, {"y": "D"}),
           ("negate", {"x": "X"}, {"y": "N"})]
ensemble("diamond", DIAMOND, outputs=("Y", "Z", "D"))
ensemble("nested", [("diamond", {"X": "X"}, {"Y": "mid"}), ("double", {"x": "mid"}, {"y": "Y"})])
ensemble("circle", [("double", {"x": "A"}, {"y": "B"}), ("negate", {"x": "B"}, {"y": "A"}),
                    ("both", {"a": "X", "b": "A"}, {"sum": "Y"})])
ensemble("twice", [("double", {"x": "X"}, {"y": "Y"}), ("negate", {"x": "X"}, {"y": "Y"})])
ensemble("missing", [("nothing", {"x": "X"}, {"y": "Y"})])
ensemble("unwritten", [("double", {"x": "W"}, {"y": "Y"})])
ensemble("mismatch", [("double", {"x": "X"}, {"y": "Y"})], head="max_batch_size: 0\n")
add("few", [helper.make_node("Neg", ["x"], ["y"])], ["x"], ["y"])
(repository / "few" / "config.pbtxt").write_text("max_batch_size: 4\n")
ensemble("larger", [("few", {"x": "X"}, {"y": "Y"})])
ensemble("lacking", [("both", {"a": "X"}, {"sum": "Y"})])
ensemble("grouped", [("double", {"x": "X"}, {"y": "Y"})], head="max_batch_size: 8 instance_group { count: 2 }\n")
# double keeps no sequences, total does: OUTPUT is the sum so far of twice the inputs.
add("total", [helper.make_node("Add", ["x", "sum_in"], ["y"]), helper.make_node("Identity", ["y"], ["sum_out"])],
    ["x", "sum_in"], ["y", "sum_out"])
(repository / "total" / "config.pbtxt").write_text("""max_batch_size: 8
sequence_batching { oldest { } state { input_name: "sum_in" output_name: "sum_out" data_type: TYPE_FP32 dims: 4 } }
""")
ensemble("stateful", [("double", {"x": "X"}, {"y": "D"}), ("total", {"x": "D"}, {"y": "Y"})])
add_slow(repository)
(repository / "narrow" / "1").mkdir(parents=True)
(repository / "narrow" / "config.pbtxt").write_text("""platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ 64, 512 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 64, 512 ] }
ensemble_scheduling { max_inflight_requests: 2
  step { model_name: "slow" model_version: -1 input_map { key: "x0" value: "X" }
         output_map { key: "x220" value: "Y" } } }
""")
server = Server(repository, "--model-control", "explicit", "--load-model", "*", "--threads", "1")


def x(rows=2, module=triton, seed=0):
    values = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    t = module.InferInput("X", values.shape, "FP32")
    t.set_data_from_numpy(values)
    return values, [t]


def results():
    c, h = triton.InferenceServerClient(server.grpc_address), triton_http.InferenceServerClient(server.address)
    for own, module in ((c, triton), (h, triton_http)):
        for rows in (1, 5):
            values, ins = x(rows, module)
            got = own.infer("diamond", ins)
            np.testing.assert_allclose(got.as_numpy("Y"), values, rtol=1e-6)
            np.testing.assert_allclose(got.as_numpy("Z"), -2 * values * values, rtol=1e-6)
            np.testing.assert_array_equal(got.as_numpy("D"), 2 * values)
            np.testing.assert_allclose(own.infer("nested", ins).as_numpy("Y"), 2 * values, rtol=1e-6)
    meta = h.get_model_metadata("diamond")
    assert meta["platform"] == "ensemble" and meta["inputs"][0]["shape"] == [-1, 4], meta
    assert h.get_model_config("diamond")["ensemble_scheduling"]["step"][0]["input_map"] == {"a": "D", "b": "N"}
    config = c.get_model_config("nested").config
    assert config.ensemble_scheduling.step[1].output_map["y"] == "Y"


def statistics():
    c = triton.InferenceServerClient(server.grpc_address)
    before = {m.name: m.inference_stats.success.count for m in c.get_inference_statistics().model_stats}
    for i in range(5):
        c.infer("nested", x(1, seed=i)[1])
    after = {m.name: m.inference_stats.success.count for m in c.get_inference_statistics().model_stats}
    grown = {name: after[name] - before[name] for name in after}
    used = {name: count for name, count in grown.items() if count}
    assert used == {"diamond": 5, "nested": 5, "double": 10, "negate": 5, "both": 5}, grown


def sequences():
    """Only the steps that keep sequences hear of them."""
    c = triton.InferenceServerClient(server.grpc_address)
    sums = {4: np.zeros((1, 4), np.float32), 5: np.zeros((1, 4), np.float32)}
    for i in range(4):
        for sequence in sums:
            values, ins = x(1, seed=10 * sequence + i)
            sums[sequence] += 2 * values
            got = c.infer("stateful", ins, sequence_id=sequence, sequence_start=i == 0, sequence_end=i == 3)
            np.testing.assert_allclose(got.as_numpy("Y"), sums[sequence], rtol=1e-5)


def many_at_once():
    errors = []

    def client(seed):
        c = triton.InferenceServerClient(server.grpc_address)
        for i in range(30):
            values, ins = x(1 + (seed + i) % 4, seed=100 * seed + i)
            got = c.infer("diamond", ins).as_numpy("Z")
            if not np.allclose(got, -2 * values * values, rtol=1e-5):
                errors.append((seed, i))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[:3]


def refused(fragment, call):
    try:
        call()
    except InferenceServerException as error:
        assert fragment in str(error), f"{fragment!r} is not in {error}"
        return
    raise AssertionError(f"no refusal with {fragment!r}")


def refusals():
    c = triton.InferenceServerClient(server.grpc_address)
    reasons = {e.name: e.reason for e in c.get_model_repository_index().models}
    assert "circle" in reasons["circle"] and "written twice" in reasons["twice"], reasons
    assert "no loaded version" in reasons["missing"] or "failed to load" in reasons["missing"], reasons["missing"]
    assert "not written by any step" in reasons["unwritten"] and "mismatch" in reasons["mismatch"], reasons
    assert "max_batch_size 8, its step 'few' only 4" in reasons["larger"], reasons["larger"]
    assert "no input_map for the model's input 'b'" in reasons["lacking"], reasons["lacking"]
    assert "'instance_group' is not honoured of an ensemble" in reasons["grouped"], reasons["grouped"]
    assert "[-1,4]" in reasons["mismatch"], reasons["mismatch"]
    values, ins = x()
    refused("no step with sequence_batching",
            lambda: c.infer("diamond", ins, sequence_id=3, sequence_start=True))
    refused("expected 1 inputs but got 0", lambda: c.infer("diamond", []))
    refused("batch-size must be <= 8", lambda: c.infer("diamond", x(9)[1]))
    refused("unexpected inference output", lambda: c.infer(
        "diamond", ins, outputs=[triton.InferRequestedOutput("N")]))
    big = triton.InferInput("X", [64, 512], "FP32")
    big.set_data_from_numpy(np.ones((64, 512), np.float32))
    handles, ends = [], []
    for _ in range(8):
        handles.append(c.async_infer("narrow", [big], lambda result, error: ends.append(error)))
    for h in handles:
        try:
            h.get_result()
        except Exception:  # noqa: BLE001 counted below
            pass
    refused("in ensemble, step 'slow'", lambda: [c.unload_model("slow"), c.infer("narrow", [big])])
    c.load_model("slow")
    assert sum(e is not None and "Exceeds maximum queue size" in str(e) for e in ends) >= 1, ends


def control():
    """Loading an ensemble loads its members; unload_dependents takes them along."""
    c = triton.InferenceServerClient(server.grpc_address)
    for name in ("nested", "diamond", "double", "negate", "both"):
        c.unload_model(name)
    c.load_model("nested")
    values, ins = x(3)
    np.testing.assert_allclose(c.infer("nested", ins).as_numpy("Y"), 2 * values, rtol=1e-6)
    c.unload_model("diamond", unload_dependents=True)
    assert not c.is_model_ready("both") and c.is_model_ready("nested")
    refused("NOT_FOUND", lambda: c.infer("nested", ins))
    c.load_model("diamond")
    np.testing.assert_allclose(c.infer("nested", ins).as_numpy("Y"), 2 * values, rtol=1e-6)


try:
    run_cases([(case.__name__, case) for case in (results, statistics, sequences, many_at_once, refusals, control)])
finally:
    if server.process.poll() is None:
        server.stop()
    shutil.rmtree(repository, ignore_errors=True)
