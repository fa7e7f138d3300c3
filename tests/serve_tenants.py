# Fair shares between tenants through a real server: a flood does not hold up another tenant, nor fill its queue.
import queue
import shutil
import threading
import time

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http

from _serving import Server, add_slow, run_cases, temporary

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
        self.options = options
        self.ended, self.done, self.refused = threading.Event(), 0, 0
        self.answers = queue.Queue()
        for _ in range(depth):
            self.send()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def send(self):
        self.client.async_infer("slow", slow_inputs(), lambda result, error: self.answers.put(error), **self.options)

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


def latencies(server, count, options, module=triton):
    """Of one after the other; a refusal fails the test."""
    address = server.grpc_address if module is triton else server.address
    client, out = module.InferenceServerClient(address), []
    for _ in range(count):
        begin = time.monotonic()
        client.infer("slow", slow_inputs(module), **options)
        out.append(time.monotonic() - begin)
    return np.array(out)


def by_parameter(name):
    return {"parameters": {"tenant": name}}


def flood_and_one(server, options_a, options_b):
    alone = np.median(latencies(server, 10, options_b))
    flood = Flood(server, 24, options_a)
    time.sleep(0.3)
    beside = latencies(server, 20, options_b)
    flood.stop()
    return alone, np.median(beside), flood


def a_flood_holds_nobody_up():
    with Server(repository, "--threads", "1") as server:
        _, unfair, _ = flood_and_one(server, by_parameter("a"), by_parameter("b"))
    with Server(repository, "--threads", "1", "--tenant-by", "parameter", "--max-queue", "16") as server:
        alone, fair, flood = flood_and_one(server, by_parameter("a"), by_parameter("b"))
        metrics = server.metrics()
    print(f"median alone {alone * 1e3:.0f} ms, beside a flood {fair * 1e3:.0f} ms, without shares "
          f"{unfair * 1e3:.0f} ms; the flood had {flood.done} answers, {flood.refused} refusals", flush=True)
    # At worst it waits for the run that is on, and then runs; the flood's 24 make it wait for 24 otherwise.
    assert fair < 0.4 * unfair, (fair, unfair)
    assert flood.refused > 0, "the queue was never full"
    # 30 of b were answered though the queue was full: a's newest gave way.
    assert metrics['trireme_tenant_requests_total{tenant="b",result="done"}'] == 30
    assert metrics['trireme_tenant_requests_total{tenant="b",result="refused"}'] == 0
    assert metrics['trireme_tenant_requests_total{tenant="a",result="refused"}'] > 0
    assert metrics['trireme_tenant_compute_seconds_total{tenant="a"}'] > \
        metrics['trireme_tenant_compute_seconds_total{tenant="b"}'] > 0
    assert metrics['trireme_tenant_request_duration_seconds_count{tenant="b"}'] == 30


def weights_by_header():
    """Two floods; what they get is as their weights, told by API keys in both protocols."""
    options = ("--threads", "1", "--tenant-by", "header:X-API-Key", "--tenant", "gold=3:key-g", "--tenant",
               "silver=1:key-s")
    with Server(repository, *options) as server:
        gold = Flood(server, 12, {"headers": {"x-api-key": "key-g"}})
        silver = Flood(server, 12, {"headers": {"x-api-key": "key-s"}})
        time.sleep(0.5)
        begin = (gold.done, silver.done)
        time.sleep(4)
        got = gold.done - begin[0], silver.done - begin[1]
        http = latencies(server, 3, {"headers": {"X-API-Key": "key-g"}}, triton_http)
        gold.stop()
        silver.stop()
        metrics = server.metrics()
        print(f"weights 3 and 1 got {got[0]} and {got[1]}", flush=True)
        assert 2.2 < got[0] / got[1] < 3.8, got
        assert len(http) == 3
        # The parameter says nothing where the header decides, and an unknown key is no label.
        latencies(server, 1, {"headers": {"x-api-key": "no-such-key"}, **by_parameter("gold")})
        names = " ".join(n for n in server.metrics() if n.startswith("trireme_tenant"))
        assert "key-g" not in names and "no-such-key" not in names and 'tenant="gold"' in names, names
        assert 'tenant="key-' in names
        assert metrics['trireme_tenant_requests_total{tenant="gold",result="done"}'] > 0


try:
    run_cases([(case.__name__, case) for case in (a_flood_holds_nobody_up, weights_by_header)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
