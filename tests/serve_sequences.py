# Sequences over HTTP and gRPC: the models of the public client examples, state kept by the server, slots and refusals.
import queue
import shutil
import threading
import time

import numpy as np
import onnx
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _serving import Server, run_cases, save, temporary, value

INT32, UINT64 = TensorProto.INT32, TensorProto.UINT64
CONTROL = """
  control_input { name: "%s" control { kind: CONTROL_SEQUENCE_%s int32_false_true: [ 0, 1 ] } }"""
TENSORS = """max_batch_size: %d
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
"""

repository = temporary()


def wire(*names, kind=INT32):
    return [value(name, kind, ["batch", 1]) for name in names]


def add_direct(name="simple_sequence", batch=8, extra=""):
    """OUTPUT = (INPUT + START) * READY."""
    save([helper.make_node("Add", ["INPUT", "START"], ["sum"]), helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"])],
         wire("INPUT", "START", "READY"), wire("OUTPUT"), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(
        TENSORS % batch + "sequence_batching { direct { }" + CONTROL % ("START", "START") +
        CONTROL % ("READY", "READY") + extra + "}\n")


def add_oldest(name="simple_dyna_sequence"):
    """OUTPUT = (INPUT + START + CORRID * END) * READY."""
    save([helper.make_node("Cast", ["CORRID"], ["id"], to=INT32), helper.make_node("Mul", ["id", "END"], ["at_end"]),
          helper.make_node("Add", ["INPUT", "START"], ["sum"]), helper.make_node("Add", ["sum", "at_end"], ["all"]),
          helper.make_node("Mul", ["all", "READY"], ["OUTPUT"])],
         wire("INPUT", "START", "END", "READY") + wire("CORRID", kind=UINT64), wire("OUTPUT"),
         repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(
        TENSORS % 8 + """instance_group { count: 2 kind: KIND_CPU }
sequence_batching { max_sequence_idle_microseconds: 10000000
  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }""" + CONTROL % ("START", "START") +
        CONTROL % ("READY", "READY") + CONTROL % ("END", "END") +
        ' control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }\n')


def add_sum(name="running_sum"):
    """OUTPUT = state + INPUT, which is the next state: nothing but the server remembers it."""
    save([helper.make_node("Add", ["INPUT", "state_in"], ["OUTPUT"]), helper.make_node("Identity", ["OUTPUT"],
                                                                                      ["state_out"])],
         wire("INPUT", "state_in"), wire("OUTPUT", "state_out"), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(TENSORS % 8 + """sequence_batching { oldest { }
  state { input_name: "state_in" output_name: "state_out" data_type: TYPE_INT32 dims: 1 } }\n""")


def add_stepping_sum(step, name="stepping_sum"):
    """OUTPUT = state + INPUT + step, in two slots: the answers tell which file a sequence runs on."""
    constant = onnx.numpy_helper.from_array(np.array(step, np.int32), "step")
    save([helper.make_node("Add", ["INPUT", "state_in"], ["sum"]), helper.make_node("Add", ["sum", "step"], ["OUTPUT"]),
          helper.make_node("Identity", ["OUTPUT"], ["state_out"])],
         wire("INPUT", "state_in"), wire("OUTPUT", "state_out"), repository / name / "1" / "model.onnx", [constant])
    (repository / name / "config.pbtxt").write_text(TENSORS % 1 + """instance_group { count: 2 }
sequence_batching { max_sequence_idle_microseconds: 60000000 direct { }
  state { input_name: "state_in" output_name: "state_out" data_type: TYPE_INT32 dims: 1 } }\n""")


def add_places(name="places", instances=1, batch=4):
    """Each row's place in its batch, and how many rows up to it are ready: what a model with slots sees."""
    zero, one, axis = (onnx.numpy_helper.from_array(np.array(v, kind), n)
                       for v, kind, n in ((0, np.int32, "zero"), (1, np.int32, "one"), (0, np.int64, "axis")))
    save([helper.make_node("Mul", ["INPUT", "zero"], ["nothing"]),
          helper.make_node("Add", ["nothing", "one"], ["ones"]),
          helper.make_node("CumSum", ["ones", "axis"], ["OUTPUT"]),
          helper.make_node("CumSum", ["READY", "axis"], ["N"])],
         wire("INPUT", "READY"), wire("OUTPUT", "N"), repository / name / "1" / "model.onnx", [zero, one, axis])
    (repository / name / "config.pbtxt").write_text(
        f"max_batch_size: {batch} instance_group {{ count: {instances} }}\n"
        'input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }\n'
        'output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }, { name: "N" data_type: TYPE_INT32 dims: 1 } ]\n'
        "sequence_batching { max_sequence_idle_microseconds: 60000000 direct { }" +
        CONTROL % ("READY", "READY") + "}\n")


def configured(source, name, config):
    """Another configuration of a model that is there."""
    (repository / name).mkdir()
    shutil.copytree(repository / source / "1", repository / name / "1")
    (repository / name / "config.pbtxt").write_text(config)


add_places()
add_places("places_of_two", 2, 2)
add_stepping_sum(0)
add_direct()
add_direct("one_slot", 1, "  max_sequence_idle_microseconds: 3000000 ")
add_oldest()
add_sum()
# More sequences than memory could hold slots for.
STATE = 'state { input_name: "state_in" output_name: "state_out" data_type: TYPE_INT32 dims: %d }'
configured("running_sum", "roomy_sum", TENSORS % 8 + "sequence_batching { oldest { max_candidate_sequences: "
           "4000000000 } " + STATE % 1 + " }")
configured("running_sum", "wide_state", TENSORS % 8 + "sequence_batching { oldest { } " + STATE % 7 + " }")
configured("running_sum", "kept_long", TENSORS % 1 + "sequence_batching { max_sequence_idle_microseconds: "
           "18446744073709551615 direct { } " + STATE % 1 + " }")
configured("running_sum", "kept_by_default", TENSORS % 1 + "sequence_batching { max_sequence_idle_microseconds: 0 "
           "direct { } " + STATE % 1 + " }")
save([helper.make_node("Cast", ["CORRID"], ["OUTPUT"], to=INT32), helper.make_node("Identity", ["INPUT"], ["rest"])],
     wire("INPUT", "CORRID"), wire("OUTPUT", "rest"), repository / "narrow_id" / "1" / "model.onnx")
(repository / "narrow_id" / "config.pbtxt").write_text(
    TENSORS % 8 + 'sequence_batching { control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID '
    "data_type: TYPE_INT32 } } }")
server = Server(repository, "--threads", "1", "--model-control", "explicit", "--load-model", "*")


def tensor(number, module=triton):
    x = module.InferInput("INPUT", [1, 1], "INT32")
    x.set_data_from_numpy(np.array([[number]], np.int32))
    return [x]


def run(client, model, sequence, numbers):
    out = []
    module = triton if isinstance(client, triton.InferenceServerClient) else triton_http
    for i, n in enumerate(numbers):
        result = client.infer(model, tensor(n, module), sequence_id=sequence, sequence_start=i == 0,
                              sequence_end=i == len(numbers) - 1)
        out.append(int(result.as_numpy("OUTPUT")[0, 0]))
    return out


def grpc_client():
    return triton.InferenceServerClient(server.grpc_address)


def http_client():
    return triton_http.InferenceServerClient(server.address)


def the_examples():
    values = [0, 11, 7, 5, 3, 2, 0, 1]
    for c in (grpc_client(), http_client()):
        assert run(c, "simple_sequence", 1000, values) == [1, 11, 7, 5, 3, 2, 0, 1]
        assert run(c, "simple_sequence", "4f2c-uuid", [100] + [-v for v in values]) == [101] + [-v for v in values]
        assert run(c, "simple_dyna_sequence", 77, values) == [1, 11, 7, 5, 3, 2, 0, 78]
        meta = c.get_model_config("simple_sequence")
    assert [t["name"] for t in meta["input"]] == ["INPUT"], meta["input"]
    assert meta["sequence_batching"]["control_input"][0]["control"][0]["kind"] == "CONTROL_SEQUENCE_START"
    assert grpc_client().get_model_config("simple_dyna_sequence").config.sequence_batching.oldest \
        .max_candidate_sequences == 1024


def streams():
    """Two sequences in one stream, each in its order."""
    c, answers = grpc_client(), queue.Queue()
    c.start_stream(lambda result, error: answers.put((result, error)))
    for i in range(20):
        for sequence in (11, 12):
            c.async_stream_infer("running_sum", tensor(i * sequence), request_id=f"{sequence}_{i}",
                                 sequence_id=sequence, sequence_start=i == 0, sequence_end=i == 19)
    seen = {11: [], 12: []}
    for _ in range(40):
        result, error = answers.get(timeout=30)
        assert error is None, error
        sequence, i = map(int, result.get_response().id.split("_"))
        seen[sequence].append(i)
        assert result.as_numpy("OUTPUT")[0, 0] == sequence * i * (i + 1) // 2
    assert seen[11] == seen[12] == list(range(20))
    c.stop_stream()


def many_sequences():
    """Sequences interleave and share batches; each result is that of a serial run."""
    errors = []

    def client(seed):
        c = grpc_client()
        numbers = np.random.default_rng(seed).integers(-50, 50, 25)
        got = run(c, "running_sum", seed + 1, [int(n) for n in numbers])
        if got != list(np.cumsum(numbers)):
            errors.append((seed, got))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[:2]
    stats = grpc_client().get_inference_statistics("running_sum").model_stats[0]
    assert stats.execution_count < stats.inference_count, "sequences shared no batch"


def refused(fragment, call):
    try:
        call()
    except InferenceServerException as error:
        assert fragment in str(error), error
        return
    raise AssertionError("the call succeeded")


def refusals():
    for c, module in ((grpc_client(), triton), (http_client(), triton_http)):
        refused("must specify the START flag on the first request of the sequence",
                lambda: c.infer("simple_sequence", tensor(1, module), sequence_id=5))
        refused("non-zero or non-empty correlation ID", lambda: c.infer("simple_sequence", tensor(1, module)))
        refused("must be a number", lambda: c.infer("simple_dyna_sequence", tensor(1, module), sequence_id="a",
                                                    sequence_start=True))
        run(c, "simple_sequence", 6, [1, 2])
        refused("START flag", lambda: c.infer("simple_sequence", tensor(1, module), sequence_id=6))
        two = module.InferInput("INPUT", [2, 1], "INT32")
        two.set_data_from_numpy(np.zeros((2, 1), np.int32))
        refused("batch-size 1", lambda: c.infer("simple_sequence", [two], sequence_id=7, sequence_start=True))


def slots():
    """One slot: a second sequence waits for the end of the first, or for it to fall idle."""
    c = grpc_client()
    first = c.infer("one_slot", tensor(1), sequence_id=1, sequence_start=True)
    assert first.as_numpy("OUTPUT")[0, 0] == 2
    answers = queue.Queue()
    c.async_infer("one_slot", tensor(5), lambda result, error: answers.put((result, error)), sequence_id=2,
                  sequence_start=True, sequence_end=True)
    time.sleep(0.1)
    assert answers.empty()
    c.infer("one_slot", tensor(1), sequence_id=1, sequence_end=True)
    result, error = answers.get(timeout=60)
    assert error is None and result.as_numpy("OUTPUT")[0, 0] == 6
    c.infer("one_slot", tensor(1), sequence_id=3, sequence_start=True)  # never ends
    begin = time.monotonic()
    assert run(c, "one_slot", 4, [3]) == [4]
    assert time.monotonic() - begin > 2
    refused("START flag", lambda: c.infer("one_slot", tensor(1), sequence_id=3))
    # A start on a live sequence begins it anew.
    c.infer("running_sum", tensor(10), sequence_id=9, sequence_start=True)
    assert run(c, "running_sum", 9, [1, 2]) == [1, 3]


def places():
    """A sequence keeps its instance and its row from start to end; rows without one are not READY."""
    c = grpc_client()

    def at(model, sequence, start=False, end=False):
        r = c.infer(model, tensor(7), sequence_id=sequence, sequence_start=start, sequence_end=end)
        return int(r.as_numpy("OUTPUT")[0, 0]), int(r.as_numpy("N")[0, 0])

    assert [at("places", i, start=True) for i in (1, 2, 3)] == [(1, 1), (2, 1), (3, 1)]
    for _ in range(3):
        assert [at("places", i) for i in (3, 1, 2)] == [(3, 1), (1, 1), (2, 1)]
    assert at("places", 2, end=True) == (2, 1)
    assert at("places", 4, start=True) == (2, 1)  # the lowest free one
    assert at("places", 3) == (3, 1)
    # Two instances of two rows: the first rows of both are given out first.
    assert [at("places_of_two", i, start=True)[0] for i in (1, 2, 3, 4)] == [1, 1, 2, 2]
    for _ in range(3):
        assert [at("places_of_two", i)[0] for i in (4, 3, 2, 1)] == [2, 2, 1, 1]


def limits():
    """Slots are not memory, times are saturated, and what cannot fit is refused where it is said."""
    c = grpc_client()
    assert run(c, "roomy_sum", 1, [1, 2, 3]) == [1, 3, 6]
    reasons = {m.name: m.reason for m in c.get_model_repository_index().models}
    assert "state 'state_in' is TYPE_INT32 [7]" in reasons["wide_state"], reasons["wide_state"]
    for model in ("kept_long", "kept_by_default"):
        c.infer(model, tensor(1), sequence_id=1, sequence_start=True)
        time.sleep(0.3)
        assert c.infer(model, tensor(2), sequence_id=1, sequence_end=True).as_numpy("OUTPUT")[0, 0] == 3
    assert run(c, "narrow_id", 2**31 - 1, [1]) == [2**31 - 1]
    refused("which its input of TYPE_INT32 does not hold",
            lambda: c.infer("narrow_id", tensor(1), sequence_id=2**32 + 7, sequence_start=True))


def waits_end():
    """A sequence that waits for a slot hears of its timeout; what follows in it does not run on its own."""
    c = grpc_client()
    c.infer("kept_long", tensor(1), sequence_id=1, sequence_start=True)  # has the one slot
    answers = queue.Queue()
    handles = [c.async_infer("kept_long", tensor(n), lambda result, error, n=n: answers.put((n, result, error)),
                             sequence_id=2, sequence_start=n == 1, sequence_end=n == 3,
                             timeout=200000 if n == 1 else None) for n in (1, 2, 3)]
    # The one slot does not come free meanwhile: only the timeout ends these.
    got = dict((n, str(error)) for n, _, error in (answers.get(timeout=60) for _ in handles))
    assert "Request timeout expired" in got[1] and "START request" in got[2] and "START request" in got[3], got
    assert c.infer("kept_long", tensor(2), sequence_id=1, sequence_end=True).as_numpy("OUTPUT")[0, 0] == 3


def reloads():
    """A sequence goes on where it began, through reloads; those that start later, on the new version."""
    c = grpc_client()

    def step(sequence, start=False, end=False):
        r = c.infer("stepping_sum", tensor(1), sequence_id=sequence, sequence_start=start, sequence_end=end)
        return int(r.as_numpy("OUTPUT")[0, 0])

    assert [step(i, start=True) for i in (1, 2)] == [1, 1]
    answers = queue.Queue()
    handles = [c.async_infer("stepping_sum", tensor(1), lambda result, error: answers.put((result, error)),
                             sequence_id=3, sequence_start=i == 0, sequence_end=i == 1) for i in range(2)]
    time.sleep(0.1)
    add_stepping_sum(1000)
    c.load_model("stepping_sum")
    assert [step(i) for i in (1, 2)] == [2, 2]
    assert step(4, start=True) == 1001
    add_stepping_sum(5000)
    c.load_model("stepping_sum")
    assert step(5, start=True) == 5001 and step(4) == 2002 and step(5, end=True) == 10002
    assert step(1, end=True) == 3  # its slot goes to the one that waited from before the reloads
    for _ in handles:
        result, error = answers.get(timeout=60)
        assert error is None, error
    assert result.as_numpy("OUTPUT")[0, 0] == 2
    assert step(2, start=True) == 5001  # a new start is on the new version
    assert step(2, end=True) == 10002 and step(4, end=True) == 3003
    for i in range(8):  # old versions do not heap up behind a sequence that never ends
        step(10 + i, start=True)
        c.load_model("stepping_sum")
    refused("START flag", lambda: step(10))
    assert step(17) == 10002
    c.unload_model("stepping_sum")
    c.load_model("stepping_sum")
    refused("START flag", lambda: step(17))


def reloads_under_load():
    """Sequences of many clients while the model is loaded again and again: none fails, all count right."""
    errors, ended = [], []
    stop = threading.Event()

    def client(seed):
        c, round_ = grpc_client(), 0
        try:
            while not stop.is_set():
                numbers = list(range(1, 12))
                got = run(c, "running_sum", 1000 * (seed + 1) + round_, numbers)
                if got != [int(n) for n in np.cumsum(numbers)]:
                    errors.append((seed, got))
                ended.append(seed)
                round_ += 1
        except InferenceServerException as error:
            errors.append((seed, str(error)))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    c = grpc_client()
    loads = 0
    while (loads < 20 or len(ended) <= 50) and not errors:
        c.load_model("running_sum")
        loads += 1
        time.sleep(0.05)
    stop.set()
    for t in threads:
        t.join()
    assert not errors, errors[:3]


CASES = [reloads, reloads_under_load, limits, waits_end, places, the_examples, streams, many_sequences, refusals, slots]
try:
    run_cases([(case.__name__, case) for case in CASES])
finally:
    if server.process.poll() is None:
        server.stop()
    shutil.rmtree(repository, ignore_errors=True)
