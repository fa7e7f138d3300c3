# How the server batches, orders and refuses, seen from outside: counts of batches, levels, late requests.
import queue
import shutil
import threading
import time

import numpy as np
import onnx
import tritonclient.grpc as triton
from onnx import helper

from _serving import Server, add_simple, add_slow, run_cases, save, temporary, until, value

repository = temporary()
add_simple(repository)
add_slow(repository)
add_slow(repository, "aware")
(repository / "aware" / "config.pbtxt").write_text(
    'parameters { key: "deadline_aware" value { string_value: "true" } }\n')


def with_policy(name, policy):
    add_slow(repository, name, rounds=60)
    model = repository / name
    (model / "config.pbtxt").write_text(policy)


def config(name, text):
    shutil.copytree(repository / "simple" / "1", repository / name / "1", dirs_exist_ok=True)
    (repository / name / "config.pbtxt").write_text("max_batch_size: 8\n" + text)


config("preferred", "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 100000 }")
config("patient", "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 600000000 }")
config("levels", """dynamic_batching { priority_levels: 2 default_priority_level: 2 priority_queue_policy {
  key: 2 value { max_queue_size: 2 } } }""")
config("late", """dynamic_batching { default_queue_policy { timeout_action: DELAY
  default_timeout_microseconds: 1000 } }""")


config("cached", "response_cache { enable: true } dynamic_batching { }")


WARMUP = """model_warmup { name: "w" batch_size: 4 count: 3
  inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 16 random_data: true } }
  inputs { key: "INPUT1" value { data_type: TYPE_INT32 dims: 16 %s } } }
metric_tags { key: "team" value: "a" }"""
config("warmed", WARMUP % 'input_data_file: "one_row"')
(repository / "warmed" / "warmup").mkdir()
(repository / "warmed" / "warmup" / "one_row").write_bytes(bytes(64))
config("cold", WARMUP.replace("INPUT1", "INPUT2") % "zero_data: true")
config("outside", WARMUP % 'input_data_file: "../../simple/1/model.onnx"')


ORDERED = """max_batch_size: 1 instance_group { count: 2 } dynamic_batching { preserve_ordering: %s }\n"""


def add_uneven(name, ordered):
    """y [batch] of x [batch, n] by way of products [n, n]: long rows take much longer."""
    axes = [onnx.numpy_helper.from_array(np.array([d]), f"a{d}") for d in (1, 2)]
    nodes = [helper.make_node("Unsqueeze", ["x", "a2"], ["column"]),
             helper.make_node("Unsqueeze", ["x", "a1"], ["row"]),
             helper.make_node("MatMul", ["column", "row"], ["s"]), helper.make_node("MatMul", ["s", "s"], ["u"]),
             helper.make_node("ReduceMax", ["u"], ["y"], axes=[1, 2], keepdims=0)]
    save(nodes, [value("x", onnx.TensorProto.FLOAT, ["batch", "n"])], [value("y", onnx.TensorProto.FLOAT, ["batch"])],
         repository / name / "1" / "model.onnx", axes)
    (repository / name / "config.pbtxt").write_text(ORDERED % str(ordered).lower())


def add_padded(name, parameters):
    """y = x + 1 for x [batch, n, 2], and the rows' sums over n, which the filling does change."""
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    save([helper.make_node("Add", ["x", "one"], ["y"]),
          helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=0)],
         [value("x", onnx.TensorProto.FLOAT, ["batch", "n", 2])],
         [value("y", onnx.TensorProto.FLOAT, ["batch", "n", 2]), value("s", onnx.TensorProto.FLOAT, ["batch", 2])],
         repository / name / "1" / "model.onnx", [one, axes])
    text = "".join('parameters { key: "%s" value { string_value: "%s" } }\n' % p for p in parameters.items())
    (repository / name / "config.pbtxt").write_text("max_batch_size: 8 dynamic_batching { }\n" + text)


add_padded("padded", {"pad_buckets": "4,16", "pad_value": "3"})
add_padded("padded_wrong", {"pad_buckets": "4,16", "pad_inputs": "z=1"})
RATED = """instance_group { count: %d rate_limiter { resources { name: "R" count: %d } priority: %d } }"""


def add_rated(name, count, need, priority=1):
    add_slow(repository, name, rounds=80)
    (repository / name / "config.pbtxt").write_text(RATED % (count, need, priority))


add_rated("rated", 1, 1)
add_rated("rated_twin", 1, 1)
add_rated("rated_greedy", 1, 9)
add_rated("rated_seldom", 1, 1, 3)


def inputs(rows=1):
    tensors = [triton.InferInput(f"INPUT{i}", [rows, 16], "INT32") for i in (0, 1)]
    for t in tensors:
        t.set_data_from_numpy(np.ones((rows, 16), np.int32))
    return tensors


def slow_inputs():
    x = triton.InferInput("x0", [64, 512], "FP32")
    x.set_data_from_numpy(np.ones((64, 512), np.float32))
    return [x]


def send(client, model, tensors, answers, **options):
    client.async_infer(model, tensors, lambda result, error: answers.put((time.monotonic(), error)), **options)


def collect(answers, count):
    return [answers.get(timeout=60) for _ in range(count)]


def batch_sizes(client, model):
    stats = client.get_inference_statistics(model).model_stats[0]
    return {b.batch_size: b.compute_infer.count for b in stats.batch_stats}, stats.execution_count


def halt_polling():
    """Cores wait in a loop after work, and sleep without it."""
    with Server(repository, "--threads", "1", "--halt-poll", "200ms") as server:
        c = triton.InferenceServerClient(server.grpc_address)

        def cpu_s():
            return server.metrics()["process_cpu_seconds_total"]

        before = cpu_s()
        time.sleep(1)
        idle = cpu_s() - before
        before, end = cpu_s(), time.monotonic() + 60
        while cpu_s() - before < 0.3 and time.monotonic() < end:  # tests beside this one come first
            c.infer("simple", inputs())
            time.sleep(0.05)
        busy = cpu_s() - before
        time.sleep(0.3)
        before = cpu_s()
        time.sleep(1)
        after = cpu_s() - before
        print(f"processor time: idle {idle:.3f} s a second, {busy:.2f} s polling, afterwards {after:.3f}", flush=True)
        assert idle < 0.15 and after < 0.15 and busy >= 0.3


def exact_counts():
    """The delay hook makes batches countable: eight wait, then what the policy says."""
    with Server(repository, "--delay-scheduler", "8", "--threads", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        answers = queue.Queue()
        for _ in range(8):
            send(c, "simple", inputs(), answers)
        assert all(error is None for _, error in collect(answers, 8))
        assert batch_sizes(c, "simple") == ({8: 1}, 1)
        for _ in range(8):
            send(c, "preferred", inputs(), answers)
        assert all(error is None for _, error in collect(answers, 8))
        assert batch_sizes(c, "preferred") == ({2: 1, 6: 1}, 2), batch_sizes(c, "preferred")
        for rows in (3, 3, 3, 1, 1, 1, 1, 1):
            send(c, "levels", inputs(rows), answers, priority=1)
        assert all(error is None for _, error in collect(answers, 8))
        # Never split, never overtaken: 3+3, then 3+1+1+1+1+1.
        sizes, executions = batch_sizes(c, "levels")
        assert executions == 2 and sizes == {6: 1, 8: 1}, sizes


def past_the_preferred():
    """As in Triton: what cannot reach a preferred size any more does not wait for one, however long it may."""
    with Server(repository, "--threads", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        answers = queue.Queue()
        begin = time.monotonic()
        c.infer("patient", inputs(7))
        send(c, "patient", inputs(3), answers)
        pending = 'nv_inference_pending_request_count{model="patient",version="1"}'
        until(lambda: server.metrics()[pending] == 1)  # four more would pass six: the three go, and the four wait
        send(c, "patient", inputs(4), answers)
        assert collect(answers, 1)[0][1] is None
        assert answers.empty()
        send(c, "patient", inputs(2), answers)
        assert [error for _, error in collect(answers, 2)] == [None] * 2
        assert time.monotonic() - begin < 400, "somebody waited for the window"
        assert batch_sizes(c, "patient") == ({7: 1, 3: 1, 6: 1}, 3), batch_sizes(c, "patient")


def levels_and_late_ones():
    with Server(repository, "--delay-scheduler", "4", "--threads", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        answers = queue.Queue()
        for _ in range(4):
            send(c, "levels", inputs(), answers)
        refused = [error for _, error in collect(answers, 2)]  # two may wait, and nothing runs yet
        for _ in range(2):
            send(c, "levels", inputs(), answers, priority=1)
        ends = [error for _, error in collect(answers, 4)]
        assert ends == [None] * 4, ends
        assert len(refused) == 2 and all("Exceeds maximum queue size" in str(e) for e in refused), refused
        for _ in range(3):
            send(c, "late", inputs(), answers)
        time.sleep(0.05)  # far past the timeout of a millisecond: DELAY runs them all the same
        send(c, "late", inputs(), answers)
        assert all(error is None for _, error in collect(answers, 4))


def in_time_or_at_once():
    """Three times more than the model can do: what cannot be in time is told so, and takes no time of the model."""
    with Server(repository, "--threads", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        answers = queue.Queue()
        for _ in range(4):
            c.infer("aware", slow_inputs())
        start = time.monotonic()
        for _ in range(3):
            c.infer("aware", slow_inputs())
        each = (time.monotonic() - start) / 3
        patience = 8 * each
        before = c.get_inference_statistics("aware").model_stats[0].execution_count
        stop, lock, done = threading.Event(), threading.Lock(), []

        def client(index):
            own = triton.InferenceServerClient(server.grpc_address)
            while not stop.is_set():
                begin = time.monotonic()
                try:
                    own.infer("aware", slow_inputs(), timeout=int(patience * 1e6))
                    error = None
                except Exception as e:  # noqa: BLE001 every end counts
                    error = str(e)
                with lock:
                    done.append((time.monotonic() - begin, error))
                if error:
                    time.sleep(each / 2)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(24)]
        for t in threads:
            t.start()
        time.sleep(4)
        stop.set()
        for t in threads:
            t.join()
        good = [t for t, error in done if error is None and t <= patience]
        late = [t for t, error in done if error is None and t > patience]
        refused = [t for t, error in done if error]
        stats = c.get_inference_statistics("aware").model_stats[0]
        mean = stats.inference_stats.compute_infer.ns / stats.inference_stats.compute_infer.count
        runs = stats.execution_count - before
        print(f"alone {each * 1e3:.0f} ms, under load {mean / 1e6:.0f} ms; in time {len(good)}, late "
              f"{len(late)}, refused {len(refused)}, median "
              f"refusal {np.median(refused) * 1e3:.2f} ms, {runs} runs", flush=True)
        assert refused and good, (len(good), len(late), len(refused))
        # How many are late depends on how steady the machine is; the rules are tested under a clock of their own.
        assert runs <= len(good) + len(late) + 0.1 * len(refused), (runs, len(good), len(late), len(refused))
        assert all("deadline" in e or "Exceeds" in e for _, e in done if e), {e for _, e in done if e}


def overlaps(server, c, names, count=60):
    """Runs at a time and runs by model over so many runs of both: from what instances report."""
    before = {n: c.get_inference_statistics(n).model_stats[0] for n in names}
    stop, lock, spans = threading.Event(), threading.Lock(), {n: 0 for n in names}

    def client(name):
        own = triton.InferenceServerClient(server.grpc_address)
        while not stop.is_set():
            own.infer(name, slow_inputs())
            with lock:
                spans[name] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in names for _ in range(6)]
    start = time.monotonic()
    for t in threads:
        t.start()
    until(lambda: sum(spans.values()) >= count)
    with lock:
        runs = dict(spans)  # while all clients ask: those under way now are answered whatever their model's priority
    stop.set()
    for t in threads:
        t.join()
    wall = time.monotonic() - start
    busy = 0
    for n in names:
        after = c.get_inference_statistics(n).model_stats[0]
        busy += (after.inference_stats.compute_infer.ns - before[n].inference_stats.compute_infer.ns) * 1e-9
    return busy / wall, runs


def limited_rates():
    options = ("--threads", "1", "--rate-limit", "execution_count", "--rate-limit-resource", "R:1")
    with Server(repository, *options) as server:
        c = triton.InferenceServerClient(server.grpc_address)
        reasons = {e.name: e.reason for e in c.get_model_repository_index().models}
        assert "needs 9 of resource 'R', the server has 1" in reasons["rated_greedy"], reasons["rated_greedy"]
        busy, _ = overlaps(server, c, ["rated", "rated_twin"])
        assert busy <= 1.02, f"two models held one resource at once: {busy:.2f} runs at a time"
        _, runs = overlaps(server, c, ["rated", "rated_seldom"])
        ratio = runs["rated"] / runs["rated_seldom"]
        print(f"runs of priority 1 and 3: {runs}, ratio {ratio:.2f}", flush=True)
        assert 2.2 < ratio < 3.8, runs
    with Server(repository, "--threads", "1") as server:  # off: needs are ignored
        c = triton.InferenceServerClient(server.grpc_address)
        assert c.is_model_ready("rated_greedy")


def kept_order():
    """Two instances; the first request takes much longer than those after it."""
    add_uneven("ordered", True)
    add_uneven("unordered", False)
    with Server(repository, "--threads", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        for name, in_order in (("ordered", True), ("unordered", False)):
            ends = queue.Queue()
            c.start_stream(lambda result, error: ends.put(error or result.get_response().id))
            # Other extents are compiled the first time; a busy machine may run two instances one after the other.
            for turn in range(20):
                for i, n in enumerate([1500, 8, 9, 10]):
                    x = triton.InferInput("x", [1, n], "FP32")
                    x.set_data_from_numpy(np.ones((1, n), np.float32))
                    c.async_stream_infer(name, [x], request_id=str(i))
                got = [ends.get(timeout=60) for _ in range(4)]
                kept = got == ["0", "1", "2", "3"]
                assert kept or not in_order, (name, got)
                if turn >= (4 if in_order else 1) and kept == in_order:
                    break
            c.stop_stream()
            assert kept == in_order, (name, got)


def padded_lengths():
    """Requests of unequal lengths share a batch; each gets its own length back."""
    with Server(repository, "--delay-scheduler", "3", "--threads", "1", "--buckets", "1,2,4") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        answers, lengths = queue.Queue(), [2, 3, 4]
        for i, n in enumerate(lengths):
            x = triton.InferInput("x", [1, n, 2], "FP32")
            x.set_data_from_numpy(np.full((1, n, 2), i, np.float32))
            c.async_infer("padded", [x], lambda result, error, i=i: answers.put((i, result, error)))
        for _ in lengths:
            i, result, error = answers.get(timeout=60)
            assert error is None, error
            np.testing.assert_array_equal(result.as_numpy("y"), np.full((1, lengths[i], 2), i + 1))
            np.testing.assert_array_equal(result.as_numpy("s"), np.full((1, 2), i * lengths[i] + 3 * (4 - lengths[i])))
        m, key = server.metrics(), '{model="padded",version="1"}'
        assert m["nv_inference_exec_count" + key] == 1
        # Four rows (three are filled up to four) of 4 x 2; 9 x 2 of them were sent.
        assert m["trireme_input_elements_total" + key] == 32 and m["trireme_padded_elements_total" + key] == 14, m
        assert m["trireme_padded_rows_total" + key] == 1
        assert m['trireme_instance_busy_seconds_total{model="padded",version="1",instance="0"}'] > 0
        reasons = {e.name: e.reason for e in c.get_model_repository_index().models}
        assert "pad_inputs: the model has no input 'z'" in reasons["padded_wrong"], reasons["padded_wrong"]


def warmed():
    with Server(repository, "--threads", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        c.infer("warmed", inputs(2))
        m = server.metrics()
        assert m['nv_inference_request_success{model="warmed",version="1",team="a"}'] == 1
        assert m['nv_inference_exec_count{model="warmed",version="1",team="a"}'] == 1  # warm-up is not counted
        config = c.get_model_config("warmed").config
        assert config.model_warmup[0].inputs["INPUT1"].input_data_file == "one_row"
        assert config.metric_tags["team"] == "a"
        reasons = {e.name: e.reason for e in c.get_model_repository_index().models}
        assert "no input 'INPUT1'" in reasons["cold"], reasons["cold"]
        assert reasons["outside"], "a warm-up file outside of the model's directory was read"


def kept_answers():
    with Server(repository, "--threads", "1", "--model-control", "explicit", "--load-model", "*") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        key = '{model="cached",version="1"}'
        for _ in range(5):
            result = c.infer("cached", inputs(2))
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), np.full((2, 16), 2))
        only = c.infer("cached", inputs(2), outputs=[triton.InferRequestedOutput("OUTPUT1")])
        np.testing.assert_array_equal(only.as_numpy("OUTPUT1"), np.zeros((2, 16)))
        c.infer("cached", inputs(1))
        m = server.metrics()
        assert m["nv_cache_num_hits_per_model" + key] == 5 and m["nv_cache_num_misses_per_model" + key] == 2, m
        assert m["nv_inference_request_success" + key] == 7 and m["nv_inference_exec_count" + key] == 2
        stats = c.get_inference_statistics("cached").model_stats[0]
        assert stats.inference_stats.cache_hit.count == 5 and stats.inference_stats.compute_infer.count == 2
        assert stats.inference_stats.success.count == stats.inference_stats.queue.count == 7
        c.load_model("cached")  # may be another model now: nothing kept is of use
        c.infer("cached", inputs(2))
        assert server.metrics()["nv_inference_exec_count" + key] == 3
        assert c.get_model_config("cached").config.response_cache.enable


try:
    run_cases([(case.__name__, case) for case in (
        exact_counts, past_the_preferred, levels_and_late_ones, kept_answers, warmed, limited_rates,
        kept_order, padded_lengths, in_time_or_at_once, halt_polling)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
