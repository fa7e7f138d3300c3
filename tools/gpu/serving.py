# A model served on the device: that it answers as on the CPU, and what it does under load.
import contextlib
import json
import subprocess
import time
import urllib.request

import numpy


def wait_ready(url, limit_s, server):
    end = time.monotonic() + limit_s
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=2) as answer:
                if answer.status == 200:
                    return True
        except OSError:
            time.sleep(0.05)
    return False


@contextlib.contextmanager
def server_of(check, port, device, *more):
    """(url, seconds until ready) of a server over the models of the check; None for both where it does not start."""
    command = [check.program("trireme"), "serve", "--model-repository", check.scratch / "models", "--http-port", port,
               "--grpc-port", -1, "--device", device, *more]
    log = check.scratch / f"serve-{port}.log"
    with open(log, "w") as errors:
        begin = time.monotonic()
        server = subprocess.Popen([str(word) for word in command], env=check.env, stdout=subprocess.DEVNULL,
                                  stderr=errors, stdin=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            if wait_ready(url, min(45, check.left()), server):
                yield url, time.monotonic() - begin
            else:
                check.verdict("serve", "failed", device=device, why=log.read_text()[-1500:] or "not ready in time")
                yield None, None
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def ask(url, x):
    with urllib.request.urlopen(f"{url}/v2/models/net", timeout=10) as answer:
        name = json.load(answer)["inputs"][0]["name"]
    body = {"inputs": [{"name": name, "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
    request = urllib.request.Request(f"{url}/v2/models/net/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return numpy.array(json.load(answer)["outputs"][0]["data"])


def export(check):
    """The model that is served, written once; None with a verdict where that fails."""
    model = check.scratch / "models/net/1/model.onnx"
    if model.exists():
        return model
    model.parent.mkdir(parents=True)
    source = "zoo:resnet14:size=32,channels=3,width=8" if check.quick else "zoo:resnet18"
    made = check.run([check.program("trireme"), "export", source, model], 60)
    if made.ok():
        return model
    check.verdict("serve", "failed", why=made.why())
    return None


def size_of(check):
    return 32 if check.quick else 224


def serve(check):
    """A served model answers on the device as on the CPU; how long each start takes, the second beside a warm cache."""
    if export(check) is None:
        return None
    size = size_of(check)
    x = numpy.random.default_rng(1).standard_normal((2, 3, size, size)).astype(numpy.float32)
    answers = []
    for port, device in ((8917, "cpu"), (8918, check.device)):
        with server_of(check, port, device, "--max-batch", 4) as (url, ready_s):
            if url is None:
                return None
            answers.append(ask(url, x))
            check.add("serve", device=device, ready_s=round(ready_s, 3))
    worst = float(numpy.abs(answers[0] - answers[1]).max() / numpy.abs(answers[0]).max())
    return check.verdict("serve", "passed" if worst < 2e-3 else "failed", largest_difference=worst)


def direct(check, batch):
    """Rows a second of the same model without a server, at the batch that the server may form."""
    command = [check.program("trireme"), "run", check.scratch / "models/net/1/model.onnx", "--device", check.device,
               "--batch", batch, "--repeat", 5 if check.quick else 50, "--json"]
    done = check.run(command, 60)
    return batch / json.loads(done.lines[-1])["p50_us"] * 1e6 if done.ok() and done.lines else None


def under_load(check):
    """Answers a second and latency of the served model with many clients, beside the same model without a server."""
    if export(check) is None:
        return None
    batch, clients = (4, 4) if check.quick else (32, 64)
    alone = direct(check, batch)
    report = check.scratch / "load.json"
    with server_of(check, 8919, check.device, "--max-batch", batch) as (url, _):
        if url is None:
            return None
        seconds = "0.5s" if check.quick else "4s"
        done = check.run([check.program("trireme"), "load", url, "--model", "net", "--concurrency", clients,
                          "--duration", seconds, "--warmup", "0.2s" if check.quick else "1s", "--json", report], 30)
    if not report.exists():
        return check.verdict("load", "failed", why=done.why())
    run = json.loads(report.read_text())["runs"][0]
    good = run["failed"] == 0 and run["succeeded"] > 0
    return check.verdict("load", "passed" if good else "failed", network="resnet", batch=batch, clients=clients,
                         requests_s=run["throughput"], rows_s_alone=alone,
                         percent_of_alone=100 * run["throughput"] / alone if alone else None,
                         p50_ms=run["latency_ns"]["p50"] / 1e6, p99_ms=run["latency_ns"]["p99"] / 1e6,
                         failed_requests=run["failed"])
