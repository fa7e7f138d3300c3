"""A server of language models beside llama.cpp's: ./dev bench language_server [--format q8_0] [--parts goodput,...].

One GGUF file with random weights for both, the same threads on the same cores, keys and values in 16 bits, and one
client (`trireme load`), which sends prompts of the same lengths. While one server is measured the other is stopped;
rounds begin with the other one each time. llama.cpp starts in three settings (bench/language_server_load.py says which
and why); the one that answers most of the mixed requests in a closed loop is measured.

Without options a call has all parts, goodput last, and ends within ten minutes on two cores, counted from when
llama.cpp is compiled: a part's third round is left out where it would end after --minutes.

goodput: the highest rate of requests of mixed lengths at which nine of ten answers keep --ttft and --tpot, found for
each server in each round; arrivals are a Poisson process. --lengths takes a trace's lengths instead (Azure, Mooncake).
streams: tokens a second of 16 streams in a closed loop, beside `trireme generate --bench` of the same batch.
prefix: time to the first token where 2,000 tokens of the prompt are known.
front: CPU of our server a streamed request and a token beside the model's steps, from answers of 1 and of 65 tokens.
ready: from the start of the process until it is ready, beside reading the file.
The default shape has 15 million weights; --shape takes another. What is written: bench/call.py.
"""
import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import contenders
import language
import language_server_load
from call import MINUTES, Call, arguments
from language_server_load import Trireme, load, one_run
from language_server_report import LanguageServer

SHAPE = "vocabulary=32000,width=288,layers=6,heads=6,kv_heads=6,inner=768,positions=2560,is_tied=1"
PARTS = ["ready", "prefix", "front", "streams", "goodput"]
STREAMS = 16
KNOWN_TOKENS, NEW_TOKENS = 2000, 16  # of the prompts of `prefix`
FRONT_TOKENS = (1, 65)
# A search doubles its rate until the goals are missed. The first of a server begins at half of what a closed loop
# answers, the next below what it found: six slices instead of seven.
SEARCH_AGAIN_FROM = 0.8


def spread(values):
    return [round(f(values), 3) for f in (statistics.median, min, max)]


class Bench:
    def __init__(self, options, folder, call):
        self.options, self.folder, self.call = options, folder, call
        self.cpus = sorted(os.sched_getaffinity(0))
        self.threads = min(options.threads, len(self.cpus))
        python = language_server_load.writer_python()
        shape = {name: int(value) for name, value in (pair.split("=") for pair in options.shape.split(","))}
        self.setup = {"file": language.model_file(python, options.format, options.shape,
                                                     language_server_load.HOME), "threads": self.threads,
                      "sequences": options.sequences, "positions": shape["positions"],
                      "peer": language_server_load.peer_program()}
        self.lengths = options.lengths or language_server_load.mixed_lengths(folder / "lengths.jsonl",
                                                                             shape["positions"])
        self.ours = self.peer = None
        self.servers = []
        self.loads = 0
        self.found_rates = {}  # requests/s that a server's latest search for its goodput found

    def open(self, kind):
        server = kind(self.setup, self.cpus, self.folder)
        self.servers.append(server)
        server.wait_ready()
        server.rest(True)
        return server

    def start(self):
        """Starts all, and keeps of the peer the setting that answers most."""
        self.ours = self.open(Trireme)
        peers = [self.open(kind) for kind in language_server_load.PEERS]
        rates = {}
        for server in peers:
            with self.turn(server):
                self.load(server, "--lengths", self.lengths, "--concurrency", STREAMS, "--duration", "1s")
                rates[server] = self.mixed(server)
        self.peer = max(rates, key=rates.get)
        for server in peers:
            print(f"{server.name}: {rates[server]:.2f} requests/s in {STREAMS} streams", flush=True)
            if server is not self.peer:
                server.close()
                self.servers.remove(server)

    def close(self):
        for server in self.servers:
            server.close()

    @contextlib.contextmanager
    def turn(self, server):
        server.rest(False)
        try:
            yield
        finally:
            server.rest(True)

    def load(self, server, *options):
        self.loads += 1  # each with prompts of its own: those of an earlier one are known to the servers
        return load(server, self.folder / "load.json", "--warmup", "1s", "--timeout", "300s", "--seed", self.loads,
                    *options)

    def mixed(self, server):
        """Requests a second in a closed loop; a setting that answers none in a slice is not the fastest."""
        return self.load(server, "--lengths", self.lengths, "--concurrency", STREAMS, "--duration",
                         f"{self.options.slice_s}s")["runs"][0]["throughput"]

    def rounds(self, measure):
        """measure(server) of ours and of the peer, round after round; a pair of lists."""
        found = {self.ours: [], self.peer: []}
        for turn in self.call.rounds(self.options.rounds, self.options.minutes):
            self.call.probe(self.cpus)
            for server in (self.ours, self.peer) if turn % 2 == 0 else (self.peer, self.ours):
                with self.turn(server):
                    found[server].append(measure(server))
        return found[self.ours], found[self.peer]

    def facts(self):
        return {"format": self.options.format, "shape": self.options.shape, "threads": self.threads,
                "sequences": self.options.sequences, "peer": f"{self.peer.name} of {language_server_load.packages()[0]}"}

    def goodput(self):
        o = self.options

        def search(server):
            start = SEARCH_AGAIN_FROM * self.found_rates.get(server, 0)  # 0: a closed loop says where
            self.found_rates[server] = self.load(
                server, "--lengths", self.lengths, "--find-rate", "--rate", f"{start:.2f}", "--concurrency", STREAMS,
                "--slo", f"first_p90={o.ttft}", "--slo", f"part_p90={o.tpot}", "--timeout", "30s", "--duration",
                f"{o.slice_s}s")["found_rate"]
            return self.found_rates[server]
        ours, peer = self.rounds(search)
        yield {"part": "goodput", "rounds": len(ours), "ttft": o.ttft, "tpot": o.tpot, "ours": spread(ours),
               "peer": spread(peer),
               "ratio": spread([a / b if b > 0 else float("inf") for a, b in zip(ours, peer)])}

    def alone(self):
        """Tokens a second of the same batch without a server: prompts and answers of STREAMS texts."""
        o = self.options
        told = language.told([os.environ["TRIREME"], "generate", self.setup["file"], "--threads", self.threads,
                              "--cache-type", "f16", "--max-sequences", o.sequences, "--bench",
                              f"prompt={o.prompt},new={o.new},batch={STREAMS}", "--json"])
        seconds = STREAMS * (o.prompt / told["prefill_tokens_s"] + o.new / told["decode_tokens_s"])
        return STREAMS * o.new / seconds

    def streams(self):
        o, alone = self.options, []

        def measure(server):
            run = one_run(self.load(server, "--concurrency", STREAMS, "--prompt-tokens", o.prompt, "--answer-tokens",
                                    o.new, "--duration", f"{o.slice_s}s"), server)
            if server is self.ours:
                self.ours.rest(True)
                alone.append(self.alone())
            return run["throughput"] * o.new
        ours, peer = self.rounds(measure)
        yield {"part": "streams", "streams": STREAMS, "prompt": o.prompt, "new": o.new, "ours": spread(ours),
               "peer": spread(peer), "alone": spread(alone),
               "of_alone": spread([a / b for a, b in zip(ours, alone)]),
               "ratio": spread([a / b for a, b in zip(ours, peer)])}

    def prefix(self):
        def measure(server):
            # The first one makes the prefix known, and is not what the median tells.
            run = one_run(self.load(server, "--concurrency", 1, "--shared-tokens", KNOWN_TOKENS, "--prompt-tokens",
                                    KNOWN_TOKENS + NEW_TOKENS, "--answer-tokens", 4, "--warmup", "0s", "--requests",
                                    15, "--duration", "300s"), server)
            return run["stream"]["first_part_ns"]["p50"] / 1e6
        ours, peer = self.rounds(measure)
        yield {"part": "prefix", "known": KNOWN_TOKENS, "prompt": KNOWN_TOKENS + NEW_TOKENS, "ours": spread(ours),
               "peer": spread(peer), "ratio": spread([b / a for a, b in zip(ours, peer)])}

    def front_of(self, tokens):
        """User, kernel and between steps, in microseconds a request of so many tokens."""
        before = self.ours.front_us()
        result = self.load(self.ours, "--concurrency", STREAMS, "--prompt-tokens", 16, "--answer-tokens", tokens,
                           "--duration", "2s", "--warmup", "0s")
        after = self.ours.front_us()
        return [(b - a) / one_run(result, self.ours)["succeeded"] for a, b in zip(before, after)]

    def front(self):
        least, most = FRONT_TOKENS
        costs = {"request": [], "token": []}
        with self.turn(self.ours):
            self.front_of(most)
            for _ in self.call.rounds(self.options.rounds, self.options.minutes):
                self.call.probe(self.cpus)
                short, long = self.front_of(least), self.front_of(most)
                tokens = [(b - a) / (most - least) for a, b in zip(short, long)]
                costs["token"].append(tokens)
                costs["request"].append([a - least * t for a, t in zip(short, tokens)])
        row = {"part": "front"}
        for what, values in costs.items():
            parts = dict(zip(("user", "kernel", "between"), map(spread, zip(*values))))
            row[what] = {"us": spread([sum(v) for v in values])} | parts
        yield row

    def read_ms(self):
        """What reading the file takes as others read it: through a buffer, from the system's memory."""
        begin = time.monotonic()
        with open(self.setup["file"], "rb", buffering=0) as file:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass
        return 1e3 * (time.monotonic() - begin)

    def ready(self):
        times, read = {Trireme: [], type(self.peer): []}, []
        for turn in self.call.rounds(self.options.rounds, self.options.minutes):
            self.call.probe(self.cpus)
            read.append(self.read_ms())
            for kind in list(times) if turn % 2 == 0 else list(times)[::-1]:
                with tempfile.TemporaryDirectory() as folder:
                    server = kind(self.setup, self.cpus, pathlib.Path(folder))
                    try:
                        times[kind].append(server.ready_ms())
                    finally:
                        server.close()
        ours, peer = times.values()
        yield {"part": "ready", "file_mb": round(self.setup["file"].stat().st_size / 1e6, 1), "ours": spread(ours),
               "peer": spread(peer), "read": spread(read), "ratio": spread([b / a for a, b in zip(ours, peer)])}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="q8_0", choices=list(language.BITS))
    parser.add_argument("--shape", default=SHAPE, help="options of zoo:llama")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--lengths", help="file of a trace, whose lengths and shared prefixes are taken")
    parser.add_argument("--ttft", default="250ms", help="goal of the time to the first token, for nine of ten")
    parser.add_argument("--tpot", default="25ms", help="goal of the mean time between tokens, for nine of ten")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt of `streams`")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer of `streams`")
    parser.add_argument("--sequences", type=int, default=32, help="texts under way at a time")
    parser.add_argument("--slice-s", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no round begins that would end later")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments(parser)
    return parser.parse_args()


def main():
    options = parse()
    # What the first call compiles is no part of its ten minutes.
    language_server_load.writer_python()
    language_server_load.peer_program()
    call = Call("language_server", options, lambda cpus: contenders.limits(options.limits, cpus))
    rows, facts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder), call)
        try:
            bench.start()
            facts = bench.facts()
            for part in options.parts.split(","):
                for row in getattr(bench, part)():
                    rows.append(row)
                    print(LanguageServer.line(row), flush=True)
        finally:
            bench.close()
    sys.exit(call.finish(rows, **facts))


if __name__ == "__main__":
    main()
