# Fair shares between tenants through a real server: a flood does not hold up another tenant, nor fill its queue.
import queue
import shutil
import subprocess
import threading
import time

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http

from _serving import TRIREME, Server, add_slow, run_cases, temporary

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
    # Whose is more depends on how the machine's other work fell: their shares are equal while both have work.
    assert all(metrics[f'trireme_tenant_compute_seconds_total{{tenant="{t}"}}'] > 0 for t in "ab")
    assert metrics['trireme_tenant_request_duration_seconds_count{tenant="b"}'] == 30


def weights_by_header():
    """Two floods; what they get is as their weights, told by API keys in both protocols."""
    options = ("--threads", "1", "--tenant-by", "header:X-API-Key", "--tenant", "gold=3:key-g", "--tenant",
               "silver=1:key-s")

    def answers(server):
        metrics = server.metrics()
        return [metrics.get(f'trireme_tenant_requests_total{{tenant="{t}",result="done"}}', 0)
                for t in ("gold", "silver")]

    with Server(repository, *options) as server:
        # Clients that take next to nothing of a busy machine: a queue that runs empty has no shares.
        words = [TRIREME, "load", server.url, "--model", "slow", "--threads", "1", "--concurrency", "12", "--duration",
                 "7s", "--warmup", "0s", "--header"]
        floods = [subprocess.Popen([*words, f"X-API-Key: {key}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                  for key in ("key-g", "key-s")]
        time.sleep(1)
        begin = answers(server)
        time.sleep(4)
        got = [int(after - before) for after, before in zip(answers(server), begin)]
        http = latencies(server, 3, {"headers": {"X-API-Key": "key-g"}}, triton_http)
        assert len(http) == len(latencies(server, 3, {"headers": {"x-api-key": "key-s"}})) == 3
        assert [flood.wait(60) for flood in floods] == [0, 0]
        metrics = server.metrics()
        print(f"weights 3 and 1 got {got[0]} and {got[1]}", flush=True)
        assert 2.2 < got[0] / max(1, got[1]) < 3.8, got
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
