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


add_places()
add_places("places_of_two", 2, 2)
add_direct()
add_direct("one_slot", 1, " max_sequence_idle_microseconds: 300000 ")
add_oldest()
add_sum()
server = Server(repository, "--threads", "1")


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
    begin = time.monotonic()
    c.async_infer("one_slot", tensor(5), lambda result, error: answers.put((result, error)), sequence_id=2,
                  sequence_start=True, sequence_end=True)
    time.sleep(0.1)
    assert answers.empty()
    c.infer("one_slot", tensor(1), sequence_id=1, sequence_end=True)
    result, error = answers.get(timeout=10)
    assert error is None and result.as_numpy("OUTPUT")[0, 0] == 6
    c.infer("one_slot", tensor(1), sequence_id=3, sequence_start=True)  # never ends
    begin = time.monotonic()
    assert run(c, "one_slot", 4, [3]) == [4]
    assert 0.2 < time.monotonic() - begin < 5
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


CASES = [places, the_examples, streams, many_sequences, refusals, slots]
try:
    run_cases([(case.__name__, case) for case in CASES])
finally:
    if server.process.poll() is None:
        server.stop()
    shutil.rmtree(repository, ignore_errors=True)
