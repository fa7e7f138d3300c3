"""Serving beside other servers: ./dev bench serve [--quick] [--models a,b] [--servers a,b] [--parts speed,front,...].

speed: requests a second of identity (16 floats), image (3 x 224 x 224 in, one number out), MobileNetV2 and MiniLM over
HTTP binary, JSON and gRPC, from 1 to 256 connections, against NVIDIA Triton (the server in PyPI's nvidia-pytriton, with
a backend in C++ for the models without work and ONNX Runtime in its Python backend for the others), MLServer, and ONNX
Runtime or OpenVINO behind FastAPI. Half of the cores are the servers', half the load's. All servers get the same bytes
from the same generators (`trireme load`; h2load for gRPC), a slice each while the others are stopped, round after
round over all rows; a row quotes medians over rounds and medians of the ratios inside a round. Each peer runs with a
worker or instance a core and with one that has a thread for each core; the first round runs both, later ones the faster
on that row. Triton batches dynamically where models compute.
front: CPU time of our server a request of 602 KB, less the model's; beside it what the kernel alone takes to hand over
such requests on as many connections (bench_serve), in the same rotation.
slo: latency of MiniLM at 80 % of its saturation rate, open loop with Poisson arrivals, both measured in one turn, turn
after turn (with --quick only ours), with one instance, an instance a core, and each with --halt-poll 20ms.
unserved: our served throughput over `trireme run --loop` of the best batch size on the same cores. Peers are installed
outside the repository on first use. What is written: bench/call.py.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy

import contenders
import serve_models
import serve_report
import serve_servers
from call import Call, arguments
from models import numbers
from serve_load import Load
from serve_servers import PEERS, Trireme, TriremePerCore, TriremePerCorePolling, TriremePolling

FORMS = {"identity": ["binary", "json", "grpc"], "image": ["binary", "grpc"], "mobilenetv2": ["binary", "grpc"],
         "resnet18": ["binary", "grpc"], "minilm": ["binary", "json", "grpc"]}
PARTS = ["speed", "front", "slo", "unserved"]
LONG_SLICE_S = 1.5  # a tail takes four: 1,400 to 3,000 requests of MiniLM
AGREES = 1e-3  # largest difference of answers, over the largest value


def middle(values):
    return statistics.median(values)


def spread(values):
    return [round(f(values), 3) for f in (middle, min, max)]


class SpeedRow:
    """All servers on one model, form and number of connections, over the rounds of a call."""

    def __init__(self, bench, model, form, connections):
        self.bench, self.model, self.form, self.connections = bench, model, form, connections
        self.team = [s for s in bench.servers if form in s.takes and (model.computes or not s.is_wide)]
        self.rounds = []

    def measure(self, index):
        load, seconds = self.bench.load(self.model, self.form), self.bench.slice_s(self.model)
        if index == 0:
            for server in self.team:
                self.bench.slice(load, server, self.connections, max(0.3, seconds / 3))
        turn = index % len(self.team)
        self.rounds.append({s.name: self.bench.slice(load, s, self.connections, seconds)
                            for s in self.team[turn:] + self.team[:turn]})
        if index == 0:  # of each peer the setting that was faster
            fastest = {}
            for server in sorted(self.team, key=lambda s: self.rounds[0][s.name].per_second):
                fastest[server.peer] = server
            self.team = [s for s in self.team if fastest[s.peer] is s]

    def facts(self):
        names = {s.peer: s.name for s in self.team}
        ours = self.bench.ours.name

        def medians(of):
            return {peer: round(middle([of(r[name]) for r in self.rounds]), 3) for peer, name in names.items()}
        row = {"model": self.model.name, "form": self.form, "connections": self.connections,
               "per_second": medians(lambda r: r.per_second), "mean_ms": medians(lambda r: r.latency_ms["mean"]),
               "cpu_us": medians(lambda r: sum(r.cpu_us)),
               "mode": {s.peer: "one, wide" if s.is_wide else "" for s in self.team},
               "ratio": {peer: spread([r[ours].per_second / r[name].per_second for r in self.rounds])
                         for peer, name in names.items() if peer != ours}}
        if self.form != "grpc":  # h2load tells no percentiles
            row["p99_ms"] = medians(lambda r: r.latency_ms["p99"])
        if row["ratio"]:
            row["best_peer"] = max(row["ratio"], key=row["per_second"].get)
            row["ratio_best_peer"] = row["ratio"][row["best_peer"]]
        return row


class Bench:
    def __init__(self, options, folder, call):
        self.call = call
        cores = sorted(os.sched_getaffinity(0))
        half = max(1, len(cores) // 2)
        self.server_cpus, self.load_cpus = cores[:half], cores[half:] or cores
        self.options, self.folder = options, folder
        found = serve_models.find_models(folder, options.tokens)
        wanted = options.models.split(",") if options.models else list(found)
        self.models = {name: m for name, m in found.items() if name in wanted}
        self.loads = {}

    def load(self, model, form):
        key = model.name, form
        if key not in self.loads:
            self.loads[key] = Load(model, form, self.folder, self.load_cpus)
        return self.loads[key]

    def start(self):
        names = [n for n in (self.options.servers.split(",") if self.options.servers else PEERS) if n in PEERS]
        parts = self.options.parts.split(",")
        needs_peers = names and ("speed" in parts or "slo" in parts and not self.options.quick)
        peers = serve_servers.peers_folder() if needs_peers else None
        self.servers = [Trireme(self.models, self.server_cpus, self.folder, peers)]
        computes = any(m.computes for m in self.models.values())
        widths = [False, True] if computes and len(self.server_cpus) > 1 else [False]
        for name in names if needs_peers else []:
            for is_wide in widths:
                self.servers.append(PEERS[name](self.models, self.server_cpus, self.folder, peers, is_wide))
        for server in self.servers:
            server.wait_ready()
            print(f"ready: {server.name}", flush=True)
        self.ours = self.servers[0]
        self.settle()
        for server in self.servers:
            server.rest(True)

    def settle(self, seconds=30):
        """Waits until servers that say they are ready have really started."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before = [sum(s.cpu_us()) for s in self.servers]
            time.sleep(1)
            if max(sum(s.cpu_us()) - b for s, b in zip(self.servers, before)) < 0.05e6:
                return

    @contextlib.contextmanager
    def turn(self, server):
        """Only this server runs meanwhile: some peers look for work a thousand times a second."""
        server.rest(False)
        try:
            yield
        finally:
            server.rest(True)

    def slice(self, load, server, connections, seconds):
        with self.turn(server):
            return load.run(server, connections, seconds)

    def slice_s(self, model):
        """What is in hand when a slice ends is not counted: of a model that takes milliseconds that is no trifle."""
        return max(LONG_SLICE_S, self.options.slice_s) if model.computes else self.options.slice_s

    def close(self):
        for server in getattr(self, "servers", []):
            server.close()

    def head(self, part):
        return {"part": part, "rounds": self.options.rounds}

    def facts(self):
        """What stands in the head of the page."""
        facts = {"server cores": len(self.server_cpus), "load cores": len(self.load_cpus)}
        for server in self.servers[1:]:
            if server.peer == "triton" and not server.is_wide:
                with self.turn(server):
                    facts["Triton"] = f"{server.version()} of {serve_servers.PYTRITON}, dynamic batching"
        return facts

    # speed: one row for each model, form and number of connections

    def differences(self, model):
        """Each server's answer against ours, relative to the largest value."""
        answers = {}
        for server in self.servers:
            form = "binary" if "binary" in server.takes else "json"
            with self.turn(server):
                answers[server.name] = self.load(model, form).answer(server)
        ours = answers[self.ours.name]
        return {name: float(f"{numpy.abs(a - ours).max() / max(numpy.abs(ours).max(), 1e-30):.2g}")
                for name, a in answers.items() if name != self.ours.name}

    def speed_rows(self):
        """(model, form, connections) of the table."""
        for model in self.models.values():
            for form in FORMS[model.name]:
                if self.options.quick and model.computes and form == "json":
                    continue
                if form == "grpc" and not shutil.which("h2load"):
                    print("gRPC is left out: there is no h2load (Debian package nghttp2-client)", flush=True)
                    continue
                for connections in numbers(self.options.connections):
                    if model.name != "identity" and connections > 64:
                        continue  # a queue in front of the same cores
                    if self.options.quick and model.computes and connections == 16:
                        continue
                    yield SpeedRow(self, model, form, connections)

    def speed(self):
        differences = {model.name: self.differences(model) for model in self.models.values()}
        rows = list(self.speed_rows())
        for index in range(self.options.rounds):
            self.call.probe(self.server_cpus)
            for row in rows:
                row.measure(index)
        for row in rows:
            found = differences[row.model.name]
            yield self.head("speed") | row.facts() | {"difference": found,
                                                      "agrees": all(d <= AGREES for d in found.values())}

    # front: CPU of a large request

    def floor_us(self, request_bytes, answer_bytes, connections):
        program = pathlib.Path(os.environ["TRIREME"]).parent / "bench_serve"
        count = int(self.options.slice_s * 5000)
        done = subprocess.run([str(w) for w in (program, request_bytes, answer_bytes, count, connections,
                                                 ",".join(map(str, self.load_cpus)))],
                              capture_output=True, text=True, check=True,
                              preexec_fn=lambda: os.sched_setaffinity(0, self.server_cpus))
        return json.loads(done.stdout)["cpu_us"]

    def model_us(self, model):
        """Microseconds in the model so far, and requests, by the server's own statistics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ours.http}/v2/models/{model.name}/stats") as answer:
            stats = json.load(answer)["model_stats"][0]
        infer = stats["inference_stats"]["compute_infer"]
        return infer["ns"] / 1e3, stats["inference_count"]

    def front(self):
        if "image" not in self.models:
            return
        model = self.models["image"]
        for form in ("binary", "grpc") if shutil.which("h2load") else ("binary",):
            load = self.load(model, form)
            for connections in (1, 16, 64):
                floors, users, kernels, inside = [], [], [], []
                self.slice(load, self.ours, connections, 0.3)
                self.call.probe(self.server_cpus)
                for _ in range(self.options.rounds + 2):
                    floors.append(self.floor_us(load.body.stat().st_size + 250, 350, connections))
                    with self.turn(self.ours):
                        before = self.model_us(model)
                        result = load.run(self.ours, connections, self.options.slice_s)
                        after = self.model_us(model)
                    users.append(result.cpu_us[0])
                    kernels.append(result.cpu_us[1])
                    inside.append((after[0] - before[0]) / max(1, after[1] - before[1]))
                nets = [u + k - m - f for u, k, m, f in zip(users, kernels, inside, floors)]
                yield self.head("front") | {
                    "form": form, "connections": connections, "user_us": spread(users), "kernel_us": spread(kernels),
                    "model_us": spread(inside), "floor_us": spread(floors), "front_us": spread(nets)}

    # slo: MiniLM at 80 % of saturation

    def slo(self):
        """Both figures of a setting come from one turn: machines change their speed by the minute."""
        if "minilm" not in self.models:
            return
        model = self.models["minilm"]
        kinds = {"one instance, --halt-poll 20ms": TriremePolling, "an instance a core": TriremePerCore,
                 "an instance a core, --halt-poll 20ms": TriremePerCorePolling}
        own = {name: kind({model.name: model}, self.server_cpus, self.folder, None) for name, kind in kinds.items()}
        settings = {"one instance": self.ours} | own
        if not self.options.quick:
            settings |= {s.name: s for s in self.servers[1:] if "binary" in s.takes}
        turns = {name: [] for name in settings}
        load = self.load(model, "binary")
        try:
            for server in own.values():
                server.wait_ready()
                server.rest(True)
            for server in settings.values():
                with self.turn(server):
                    load.run(server, 32, LONG_SLICE_S)
            for seed in range(1, max(5, self.options.rounds) + 1):
                self.call.probe(self.server_cpus)
                for name, server in settings.items():
                    with self.turn(server):
                        full = self.saturation(load, server)
                        tail = load.run(server, 64, 4 * LONG_SLICE_S, rate=round(0.8 * full, 2), seed=seed)
                    turns[name].append((full, tail.latency_ms["p50"], tail.latency_ms["p99"]))
        finally:
            for server in own.values():
                server.close()
        for name, turn in turns.items():
            full, p50, p99 = (spread(v) for v in zip(*turn))
            yield self.head("slo") | {
                "model": model.name, "setting": name, "tokens": self.options.tokens, "rounds": len(turn),
                "saturation_per_second": full, "p50_ms": p50, "p99_ms": p99}

    @staticmethod
    def saturation(load, server):
        """Requests a second with as many connections as serve most: the better mean of two slices each, because the
        best single slice is one in which the machine was fast."""
        slices = [[load.run(server, c, LONG_SLICE_S).per_second for c in (16, 64)] for _ in range(2)]
        return max(map(statistics.mean, zip(*slices)))

    # unserved: the same model on the same cores without a server

    def unserved(self):
        for model in (m for m in self.models.values() if m.computes):
            team = {batch: self.alone(model, batch) for batch in (1, 4, 8, 16, 32)}
            load = self.load(model, "binary")
            ratios, served, alone = [], [], []
            try:
                for contender in team.values():
                    contender.run(200)
                best = max(team, key=lambda b: b / team[b].run(self.options.slice_s * 1e3)["median_us"])
                self.call.probe(self.server_cpus)
                for _ in range(self.options.rounds + 2):
                    alone.append(best * 1e6 / team[best].run(self.slice_s(model) * 1e3)["median_us"])
                    served.append(self.slice(load, self.ours, 64, 2 * self.slice_s(model)).per_second)
                    ratios.append(served[-1] / alone[-1])
            finally:
                for contender in team.values():
                    contender.close()
            yield self.head("unserved") | {
                "model": model.name, "batch": best, "served_per_second": spread(served),
                "alone_per_second": spread(alone), "ratio": spread(ratios)}

    def alone(self, model, batch):
        feeds, outputs = self.folder / f"{model.name}.{batch}.feeds", self.folder / f"{model.name}.{batch}.out"
        feeds.mkdir()
        for name, array in model.inputs.items():
            numpy.save(feeds / f"{name}.npy", numpy.repeat(array, batch, axis=0))
        return contenders.ours(os.environ["TRIREME"], model.path, feeds, outputs, self.server_cpus)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="identity,image,mobilenetv2,minilm; default: all there are")
    parser.add_argument("--servers", help=f"peers: {','.join(PEERS)}; default: all")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--connections", default="1,4,16,64,256")
    parser.add_argument("--tokens", type=int, default=32, help="length of the MiniLM requests")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice-s", type=float, default=1.5)
    parser.add_argument("--quick", action="store_true", help="1, 16, 64 and 256 connections, 3 rounds of short slices")
    arguments(parser)
    options = parser.parse_args()
    if options.quick:
        options.connections, options.rounds, options.slice_s = "1,16,64,256", 3, 0.4
    return options


def main():
    options = parse()
    call = Call("serve", options, lambda cpus: contenders.limits(options.limits, cpus))
    rows, facts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder), call)
        try:
            bench.start()
            facts = bench.facts()
            for part in options.parts.split(","):
                for row in getattr(bench, part)():
                    rows.append(row)
                    print(serve_report.line(row), flush=True)
        finally:
            bench.close()
    code = call.finish(rows, **facts)
    sys.exit(code if all(row.get("agrees", True) for row in rows) else 1)


if __name__ == "__main__":
    main()
