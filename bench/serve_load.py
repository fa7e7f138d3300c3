"""Load for ./dev bench serve: the same bytes to every server from `trireme load` (HTTP) and h2load (gRPC)."""
import http.client
import json
import os
import re
import shutil
import struct
import subprocess

import numpy

import serve_models

PATH = "/v2/models/{}/infer"
CALL = "/inference.GRPCInferenceService/ModelInfer"


class Result:
    """What one slice of load gave."""

    def __init__(self, requests, per_second, latency_ms, cpu_us):
        self.requests, self.per_second = requests, per_second
        self.latency_ms, self.cpu_us = latency_ms, [us / max(requests, 1) for us in cpu_us]  # user, system a request


class Load:
    """Requests of one model in one form, written to files once."""

    def __init__(self, model, form, folder, cpus):
        self.model, self.form, self.cpus, self.folder = model, form, cpus, folder
        self.body = folder / f"{model.name}.{form}"
        self.headers, self.rates = {}, {}
        if form == "grpc":
            self.body.write_bytes(serve_models.grpc_message(model))
        else:
            body, self.headers = (serve_models.http_binary if form == "binary" else serve_models.http_json)(model)
            self.body.write_bytes(body)

    def run(self, server, connections, seconds, rate=0.0, seed=1):
        """Closed loop with so many connections; HTTP also open loop at a rate, with at most so many."""
        before = server.cpu_us()
        run = self.run_grpc if self.form == "grpc" else self.run_http
        requests, per_second, latency_ms = run(server, connections, seconds, rate, seed)
        after = server.cpu_us()
        return Result(requests, per_second, latency_ms, [b - a for a, b in zip(before, after)])

    def pinned(self, command):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                              preexec_fn=lambda: os.sched_setaffinity(0, self.cpus))

    def run_http(self, server, connections, seconds, rate, seed):
        out = self.folder / "load.json"
        command = [os.environ["TRIREME"], "load", f"http://127.0.0.1:{server.http}" + PATH.format(self.model.name),
                   "--body", self.body, "--duration", f"{seconds}s", "--warmup", "1s" if rate else "0s", "--json", out, "--threads",
                   max(1, min(len(self.cpus), connections))]
        for name, value in self.headers.items():
            command += ["--header", f"{name}: {value}"]
        # An open loop asks for the tail of a server at work, not of one that wakes up.
        open_loop = ["--rate", rate, "--seed", seed, "--connections", connections]
        command += open_loop if rate else ["--concurrency", connections]
        done = self.pinned(command)
        if done.returncode != 0:
            raise RuntimeError(f"load of {server.name} failed: {done.stderr[-500:]}{done.stdout[-500:]}")
        run = json.loads(out.read_text())["runs"][0]
        if run["failed"] > 0 or run["succeeded"] == 0:
            raise RuntimeError(f"{server.name} {self.model.name} {self.form}: {run['failed']} requests failed")
        latency = {key: value / 1e6 for key, value in run["latency_ns"].items() if isinstance(value, (int, float))}
        # What ends after the window costs CPU but is no throughput: 64 connections would add 64 requests to a slice.
        return run["succeeded"], run["throughput"], latency

    def run_grpc(self, server, connections, seconds, _rate, _seed):
        # A number of requests, not a time: at the end of a time h2load drops its connections, and Triton 2.51 does
        # not live through requests that are cut off.
        rate = self.rates.get((server.name, connections), 10 * connections)
        requests = max(4 * connections, int(rate * seconds))
        done = self.pinned([shutil.which("h2load") or "h2load", "-c", connections, "-m", 1, "-t",
                            max(1, min(len(self.cpus), connections)), "-n", requests, "-d", self.body,
                            "-H", "content-type: application/grpc", "-H", "te: trailers",
                            f"http://127.0.0.1:{server.grpc}{CALL}"])
        counts = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed", done.stdout)
        data = re.search(r"\((\d+)\) data", done.stdout)
        took = re.search(r"finished in ([\d.]+)(us|ms|s)", done.stdout)
        # gRPC's errors are HTTP successes without a message: the bytes tell.
        if not counts or int(counts[2]) < requests or int(data[1]) < requests * self.model.answer_bytes():
            raise RuntimeError(f"h2load on {server.name} failed: {done.stderr[-500:]}{done.stdout[-800:]}")
        mean = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)", done.stdout)
        scale = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
        took_s = float(took[1]) * scale[took[2]]
        self.rates[server.name, connections] = requests / took_s
        return requests, requests / took_s, {"mean": float(mean[1]) * scale[mean[2]] * 1e3}

    def answer(self, server):
        """The output's values, by one HTTP request."""
        connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        connection.request("POST", PATH.format(self.model.name), self.body.read_bytes(), self.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{server.name} {self.model.name}: {response.status} {body[:300]}")
        length = response.getheader("Inference-Header-Content-Length")
        output = json.loads(body[:int(length)] if length else body)["outputs"][0]
        if "data" in output:
            return numpy.array(output["data"], numpy.float32).reshape(-1)
        count = output["parameters"]["binary_data_size"] // 4
        return numpy.array(struct.unpack(f"<{count}f", body[int(length):int(length) + 4 * count]), numpy.float32)
