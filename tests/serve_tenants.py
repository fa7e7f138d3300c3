# Fair shares between tenants through a real server: a flood does not hold up another tenant, nor fill its queue.
import os
import queue
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _serving import TRIREME, Server, add_simple, add_slow, run_cases, save, temporary, until, value

repository = temporary()
add_slow(repository, rounds=100)


def slow_inputs(module=triton):
    x = module.InferInput("x0", [64, 512], "FP32")
    x.set_data_from_numpy(np.ones((64, 512), np.float32))
    return [x]


class Flood:
    """Keeps `depth` requests of a tenant in flight; refused ones come back at once."""

    def __init__(self, server, depth, options):
        self.client = triton.InferenceServerClient(server.grpc_address)
        self.options, self.inputs = options, slow_inputs()
        self.ended, self.done, self.refused = threading.Event(), 0, 0
        self.answers = queue.Queue()
        for _ in range(depth):
            self.send()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def send(self):
        self.client.async_infer("slow", self.inputs, lambda result, error: self.answers.put(error), **self.options)

    def run(self):
        while not self.ended.is_set():
            error = self.answers.get()
            self.done += error is None
            self.refused += error is not None
            if error is not None:
                time.sleep(0.001)
            self.send()

    def stop(self):
        self.ended.set()
        self.thread.join()
        self.client.close()


def ask(server, count, options, module=triton):
    """One after the other; a refusal fails the test."""
    client = module.InferenceServerClient(server.grpc_address if module is triton else server.address)
    for _ in range(count):
        client.infer("slow", slow_inputs(module), **options)


def by_parameter(name):
    return {"parameters": {"tenant": name}}


def flood_and_one(server, options_a, options_b, count):
    """How many of a's are answered while one of b's waits, and the flood."""
    ask(server, 10, options_b)
    flood = Flood(server, 24, options_a)
    until(lambda: flood.done >= 3)
    before = flood.done
    ask(server, count, options_b)
    passed = (flood.done - before) / count
    flood.stop()
    return passed, flood


def a_flood_holds_nobody_up():
    with Server(repository, "--threads", "1") as server:
        unfair, _ = flood_and_one(server, by_parameter("a"), by_parameter("b"), 5)
    with Server(repository, "--threads", "1", "--tenant-by", "parameter", "--max-queue", "16") as server:
        fair, flood = flood_and_one(server, by_parameter("a"), by_parameter("b"), 20)
        metrics = server.metrics()
    print(f"of a flood {fair:.1f} requests were answered while one of another tenant waited, without shares "
          f"{unfair:.1f}; the flood had {flood.done} answers, {flood.refused} refusals", flush=True)
    # At worst it waits for the run that is on, and then runs; the flood's 24 make it wait for 24 otherwise.
    assert fair < 0.4 * unfair, (fair, unfair)
    assert flood.refused > 0, "the queue was never full"
    # 30 of b were answered though the queue was full: a's newest gave way.
    assert metrics['trireme_tenant_requests_total{tenant="b",result="done"}'] == 30
    assert metrics['trireme_tenant_requests_total{tenant="b",result="refused"}'] == 0
    assert metrics['trireme_tenant_requests_total{tenant="a",result="refused"}'] > 0
    # Whose is more depends on how the machine's other work fell: their shares are equal while both have work.
    assert all(metrics[f'trireme_tenant_compute_seconds_total{{tenant="{t}"}}'] > 0 for t in "ab")
    assert metrics['trireme_tenant_request_duration_seconds_count{tenant="b"}'] == 30


def weights_by_header():
    """Two floods of as many clients; the heavier one gets more, told by API keys in both protocols. What is shared out
    is predicted time, which a busy machine keeps changing: the exact shares are tested under a clock that does not."""
    add_slow(repository, "brisk", rounds=25)
    options = ("--threads", "1", "--tenant-by", "header:X-API-Key", "--tenant", "gold=3:key-g", "--tenant",
               "silver=1:key-s")

    def had(server, what):
        metrics = server.metrics()
        return np.array([metrics.get(f'trireme_tenant_{what.format(t)}', 0) for t in ("gold", "silver")])

    requests, seconds = 'requests_total{{tenant="{}",result="done"}}', 'compute_seconds_total{{tenant="{}"}}'

    with Server(repository, *options) as server:
        # Clients that take next to nothing of a busy machine: a queue that runs empty has no shares.
        words = [TRIREME, "load", server.url, "--model", "brisk", "--threads", "1", "--concurrency", "48", "--duration",
                 "600s", "--warmup", "0s", "--header"]
        floods = [subprocess.Popen([*words, f"X-API-Key: {key}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                  for key in ("key-g", "key-s")]
        until(lambda: min(had(server, requests)) >= 10)
        begin, count = had(server, seconds), sum(had(server, requests))
        until(lambda: sum(had(server, requests)) >= count + 1000)
        got = had(server, seconds) - begin
        ask(server, 3, {"headers": {"X-API-Key": "key-g"}}, triton_http)
        ask(server, 3, {"headers": {"x-api-key": "key-s"}})
        for flood in floods:
            flood.send_signal(signal.SIGINT)
        assert [flood.wait(60) for flood in floods] == [130, 130]  # interrupted, and nothing else
        metrics = server.metrics()
        print(f"weights 3 and 1 got {got[0]:.2f} and {got[1]:.2f} s", flush=True)
        assert 1.4 < got[0] / got[1] < 7, got
        # The parameter says nothing where the header decides, and an unknown key is no label.
        ask(server, 1, {"headers": {"x-api-key": "no-such-key"}, **by_parameter("gold")})
        names = " ".join(n for n in server.metrics() if n.startswith("trireme_tenant"))
        assert "key-g" not in names and "no-such-key" not in names and 'tenant="gold"' in names, names
        assert 'tenant="key-' in names
        assert metrics['trireme_tenant_requests_total{tenant="gold",result="done"}'] > 0


KEYS = ("--tenant-by", "header:x-api-key", "--tenant", "a=1:key-a", "--tenant", "b=1:key-b", "--threads", "1")


def add_running_sum(name="running_sum"):
    """OUTPUT = state + INPUT, which is the next state."""
    kind = TensorProto.INT32
    def wires(*names):
        return [value(n, kind, ["batch", 1]) for n in names]
    save([helper.make_node("Add", ["INPUT", "state_in"], ["OUTPUT"]),
          helper.make_node("Identity", ["OUTPUT"], ["state_out"])],
         wires("INPUT", "state_in"), wires("OUTPUT", "state_out"), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text("""max_batch_size: 8
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching { oldest { }
  state { input_name: "state_in" output_name: "state_out" data_type: TYPE_INT32 dims: 1 } }
""")
    (repository / "sum_of_steps").mkdir()
    (repository / "sum_of_steps/1").mkdir()
    (repository / "sum_of_steps/config.pbtxt").write_text("""platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling { step { model_name: "%s" model_version: -1
  input_map { key: "INPUT" value: "IN" } output_map { key: "OUTPUT" value: "OUT" } } }
""" % name)


def sequences_belong_to_their_tenant():
    """A stranger's request with the same number goes on with nothing, ends nothing, and is told nothing."""
    add_running_sum()

    def step(client, module, model, names, key, number, add, **options):
        x = module.InferInput(names[0], [1, 1], "INT32")
        x.set_data_from_numpy(np.full((1, 1), add, np.int32))
        answer = client.infer(model, [x], sequence_id=number, headers={"x-api-key": key}, **options)
        return int(answer.as_numpy(names[1])[0, 0])

    with Server(repository, *KEYS) as server:
        h, c = triton_http.InferenceServerClient(server.address), triton.InferenceServerClient(server.grpc_address)
        wires = ((h, triton_http), (c, triton))
        for model, names in (("running_sum", ("INPUT", "OUTPUT")), ("sum_of_steps", ("IN", "OUT"))):
            for number in (7, "seven"):
                for client, module in wires:
                    def go(key, add, **options):
                        return step(client, module, model, names, key, number, add, **options)
                    assert go("key-a", 100, sequence_start=True) == 100
                    for stranger in ("key-b", "none of them", ""):  # it must begin its own
                        try:
                            go(stranger, 1)
                            raise AssertionError("another tenant's sequence went on")
                        except InferenceServerException as error:
                            assert "must specify the START flag" in str(error), error
                    assert go("key-b", 1, sequence_start=True) == 1
                    assert go("key-a", 10) == 110 and go("key-b", 1) == 2
                    assert go("key-b", 1, sequence_end=True) == 3
                    assert go("key-a", 10, sequence_end=True) == 120
        # Nor over a stream, which brings the tenant in its metadata.
        assert step(c, triton, "running_sum", ("INPUT", "OUTPUT"), "key-a", 9, 5, sequence_start=True) == 5
        done = queue.Queue()
        c.start_stream(lambda result, error: done.put(error), headers={"x-api-key": "key-b"})
        x = triton.InferInput("INPUT", [1, 1], "INT32")
        x.set_data_from_numpy(np.ones((1, 1), np.int32))
        c.async_stream_infer("running_sum", [x], sequence_id=9, sequence_end=True)
        assert "must specify the START flag" in str(done.get(timeout=30))
        c.stop_stream()
        assert step(c, triton, "running_sum", ("INPUT", "OUTPUT"), "key-a", 9, 5, sequence_end=True) == 10


def add_slotted_sum(name, slots):
    """The running sum in a few slots, kept for a minute."""
    (repository / name).mkdir()
    shutil.copytree(repository / "running_sum/1", repository / name / "1")
    config = (repository / "running_sum/config.pbtxt").read_text()
    (repository / name / "config.pbtxt").write_text(config.replace(
        "oldest { }", f"max_sequence_idle_microseconds: 60000000 oldest {{ max_candidate_sequences: {slots} }}"))


def slots_are_shared():
    """A tenant fills all slots and keeps them busy; another one gets its half of them, and only what begins last ends."""
    add_slotted_sum("slotted", 4)
    with Server(repository, *KEYS) as server:
        client = triton.InferenceServerClient(server.grpc_address)

        def step(key, number, add, **options):
            x = triton.InferInput("INPUT", [1, 1], "INT32")
            x.set_data_from_numpy(np.full((1, 1), add, np.int32))
            answer = client.infer("slotted", [x], sequence_id=number, headers={"x-api-key": key}, client_timeout=60,
                                  **options)
            return int(answer.as_numpy("OUTPUT")[0, 0])

        assert [step("key-a", n, n, sequence_start=True) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
        more = threading.Thread(target=step, args=("key-a", 5, 5), kwargs={"sequence_start": True})
        more.start()  # its own sequences wait for one another
        assert [step("key-b", n, n, sequence_start=True) for n in (1, 2)] == [1, 2]
        assert [step("key-a", n, 10) for n in (1, 2)] == [11, 12], "the first begun stay"
        for n in (3, 4):
            for _ in range(2):  # told as often as it is asked
                try:
                    step("key-a", n, 1)
                    raise AssertionError("a lost sequence went on")
                except InferenceServerException as error:
                    assert "UNAVAILABLE" in str(error.status()) and "lost its slot" in error.message(), error
        assert [step("key-b", n, 10) for n in (1, 2)] == [11, 12]
        assert more.is_alive(), "three of four slots"
        assert step("key-b", 1, 0, sequence_end=True) == 11
        more.join(timeout=60)
        assert not more.is_alive()
        assert [step("key-a", n, 0, sequence_end=True) for n in (1, 2, 5)] == [11, 12, 5]
        assert step("key-a", 3, 7, sequence_start=True) == 7, "begun anew"


def regions_belong_to_their_tenant():
    """Shared memory is registered, seen, read and forgotten by its tenant alone."""
    key = f"/trireme-tenants-{os.getpid()}"
    handle = shm.create_shared_memory_region("r", key, 64)
    try:
        with Server(repository, *KEYS, "--allow-client-shm") as server:
            for module, client in ((triton_http, triton_http.InferenceServerClient(server.address)),
                                   (triton, triton.InferenceServerClient(server.grpc_address))):
                a, b = {"headers": {"x-api-key": "key-a"}}, {"headers": {"x-api-key": "key-b"}}
                client.register_system_shared_memory("r", key, 64, **a)
                assert "r" in str(client.get_system_shared_memory_status(**a))
                assert key not in str(client.get_system_shared_memory_status(**b))
                client.unregister_system_shared_memory(**b)  # all of its own: none
                client.unregister_system_shared_memory("r", **b)
                x = module.InferInput("INPUT", [1, 1], "INT32")
                x.set_shared_memory("r", 4)
                options = {"sequence_id": 3, "sequence_start": True, "sequence_end": True}
                shm.set_shared_memory_region(handle, [np.full((1, 1), 41, np.int32)])
                assert client.infer("running_sum", [x], **options, **a).as_numpy("OUTPUT")[0, 0] == 41
                try:
                    client.infer("running_sum", [x], **options, **b)
                    raise AssertionError("another tenant's memory was read")
                except InferenceServerException as error:
                    assert "'r'" in str(error), error
                client.unregister_system_shared_memory("r", **a)
    finally:
        shm.destroy_shared_memory_region(handle)


def answers_kept_are_their_tenants():
    """A tenant does not learn from a quick answer that another one has asked the same."""
    add_simple(repository, "cached")
    (repository / "cached/config.pbtxt").write_text("max_batch_size: 8 response_cache { enable: true }\n")

    def ask(client, key):
        tensors = [triton.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
        for t in tensors:
            t.set_data_from_numpy(np.ones((1, 16), np.int32))
        client.infer("cached", tensors, headers={"x-api-key": key})

    with Server(repository, *KEYS) as server:
        client = triton.InferenceServerClient(server.grpc_address)
        def hits():
            return sum(v for n, v in server.metrics().items() if n.startswith("nv_cache_num_hits_per_model"))
        for key, wanted in (("key-a", 0), ("key-b", 0), ("key-a", 1), ("key-b", 2), ("unlisted", 2)):
            ask(client, key)
            assert hits() == wanted, (key, hits())


try:
    run_cases([(case.__name__, case) for case in (
        sequences_belong_to_their_tenant, slots_are_shared, regions_belong_to_their_tenant,
        answers_kept_are_their_tenants, a_flood_holds_nobody_up, weights_by_header)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
