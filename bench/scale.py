"""Scaling of data-parallel training on local ranks: ./dev bench scale [--networks resnet18,gpt] [--ranks 1,2,4].

Weak scaling: every rank keeps its rows, the global batch grows. Strong scaling: the global batch is that of the most
ranks, shared out. One thread a rank, each rank on cores of its own. Beside it stand PyTorch DDP over gloo on the same
ranks and rows, eager or compiled, whichever is faster on one rank, and this program as one process with as many threads
as the most ranks. The contenders of a network run in turn, a slice each, round after round; a row quotes medians over
rounds, ratios are medians of the ratios inside a round. The share of communication hidden is what of the time in
collectives did not hold up the computation. What is written: bench/call.py.
"""
import argparse
import os
import pathlib
import statistics
import sys
import time

import contenders
import pytorch
from call import Call, arguments
from models import PAUSE_S, numbers
from report import Scale

ROWS = {"resnet18": 32, "gpt": 8}  # samples a step on each of the most ranks; of gpt 128 tokens each


class Point:
    """One way to run a network: who, on how many ranks, with how many rows and threads each."""

    def __init__(self, who, network, ranks, rows, threads=1):
        self.who, self.network, self.ranks, self.rows, self.threads = who, network, ranks, rows, threads

    @property
    def name(self):
        return f"{self.who} {self.ranks}x{self.rows} rows" + (f" {self.threads} threads" if self.threads > 1 else "")

    def open(self, cores, zero, mode):
        cpus = cores[:self.ranks * self.threads]
        words = [self.network, self.ranks, self.threads, self.rows]
        if self.who == "trireme":
            program = pathlib.Path(os.environ["TRIREME"]).parent / "bench_scale"
            command = [program, *words, zero]
        else:
            command = [sys.executable, contenders.HERE / "scale_peer.py", mode, *words, ",".join(map(str, cpus))]
        return contenders.Contender(self.name, command, cpus, pytorch.environment() if self.who == "ddp" else None)


def faster_mode(network, rows, cores, slice_ms):
    """eager or compiled: what is faster on one rank."""
    point, found = Point("ddp", network, 1, rows), {}
    for mode in ("eager", "compiled"):
        peer = point.open(cores, 0, mode)
        try:
            peer.run(slice_ms / 4)
            found[mode] = peer.run(slice_ms)["median_us"]
        finally:
            peer.close()
    return min(found, key=found.get)


def points(network, ranks, rows):
    """Weak and strong scaling of both, and the single process, without doubles."""
    most = max(ranks)
    wanted = [(who, n, per) for who in ("trireme", "ddp") for n in ranks for per in (rows, rows * most // n)]
    found = [Point(who, network, n, per) for who, n, per in dict.fromkeys(wanted)]
    return found + [Point("trireme", network, 1, rows * most, most)]


class Race:
    """All points of one network."""

    def __init__(self, network, options, cores):
        self.network, self.options = network, options
        self.ranks = [n for n in numbers(options.ranks) if n <= len(cores)]
        self.rows, self.most = ROWS[network], max(self.ranks)
        self.team = []
        self.mode = None if options.no_peer else faster_mode(network, self.rows, cores, options.slice_ms)
        for point in points(network, self.ranks, self.rows):
            if point.who == "trireme" or not options.no_peer:
                self.team.append(point.open(cores, options.zero, self.mode))

    def measure(self, call, cores):
        self.rounds = []
        for index in range(self.options.rounds):
            call.probe(cores)
            turn = index % len(self.team)
            answers = {}
            for contender in self.team[turn:] + self.team[:turn]:
                time.sleep(PAUSE_S)
                answers[contender.name] = contender.run(self.options.slice_ms)
            self.rounds.append(answers)

    def us(self, point):
        return statistics.median(r[point.name]["median_us"] for r in self.rounds)

    def rate_ratio(self, ours, other, per_rank=False):
        """[median, least, most] of ours' samples a second over the other's."""
        def rate(answers, p):
            samples = p.rows if per_rank else p.rows * p.ranks
            return samples / answers[p.name]["median_us"]
        ratios = [rate(r, ours) / rate(r, other) for r in self.rounds if other.name in r]
        return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))] if ratios else None

    def row(self, kind, ranks):
        rows = self.rows if kind == "weak" else self.rows * self.most // ranks
        first = self.rows if kind == "weak" else self.rows * self.most
        ours, ddp = (Point(who, self.network, ranks, rows) for who in ("trireme", "ddp"))
        alone, ddp_alone = (Point(who, self.network, 1, first) for who in ("trireme", "ddp"))
        whole = Point("trireme", self.network, 1, self.rows * self.most, self.most)
        answers = [r[ours.name] for r in self.rounds]
        communication = statistics.median(a["communication_us"] for a in answers)
        exposed = statistics.median(a["exposed_us"] for a in answers)
        has_peer = ddp.name in self.rounds[0]
        row = {"network": self.network, "scaling": kind, "ranks": ranks, "rows": rows, "zero": self.options.zero,
               "rounds": len(self.rounds), "ms": round(self.us(ours) / 1e3, 3),
               "samples_per_s": round(rows * ranks / self.us(ours) * 1e6, 1),
               "efficiency": [round(x / (1 if kind == "weak" else ranks), 3)
                              for x in self.rate_ratio(ours, alone, kind == "weak")],
               "communication_ms": round(communication / 1e3, 3), "exposed_ms": round(exposed / 1e3, 3),
               "hidden": round(1 - exposed / communication, 3) if communication > 0 else None}
        if has_peer:
            row["ddp_ms"] = round(self.us(ddp) / 1e3, 3)
            row["ddp_efficiency"] = round(self.rate_ratio(ddp, ddp_alone, kind == "weak")[0] /
                                          (1 if kind == "weak" else ranks), 3)
            row["times_ddp"] = self.rate_ratio(ours, ddp)
        if rows * ranks == whole.rows:
            row["one_process_ms"] = round(self.us(whole) / 1e3, 3)
            row["of_one_process"] = self.rate_ratio(ours, whole)
        return row

    def table(self):
        return [self.row(kind, n) for kind in ("weak", "strong") for n in self.ranks]

    def facts(self):
        """What stands in every row."""
        peers = [c.ready["version"] for c in self.team if "version" in c.ready]
        sizes = {c.ready["parameters"] for c in self.team}
        assert len(sizes) == 1, f"the contenders train different networks: {sizes}"
        return {"parameters": sizes.pop(), "torch": peers[0] if peers else None, "threads_whole": self.most,
                "ddp_mode": self.mode}

    def close(self):
        for contender in self.team:
            contender.close()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(ROWS))
    parser.add_argument("--ranks", default="1,2,4", help="more than there are cores are left out")
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice-ms", type=float, default=2000)
    parser.add_argument("--no-peer", action="store_true", help="without PyTorch")
    arguments(parser)
    return parser.parse_args()


def main():
    options = parse()
    cores = sorted(os.sched_getaffinity(0))
    call = Call("scale", options, lambda cpus: contenders.limits(options.limits, cpus))
    paths = {} if options.no_peer else pytorch.paths()
    rows = []
    for network in options.networks.split(","):
        race = Race(network, options, cores)
        try:
            race.measure(call, cores)
            found = [dict(row, **race.facts()) for row in race.table()]
        finally:
            race.close()
        for row in found:
            print(Scale.line(row), flush=True)
        rows += found
    modes = ", ".join(dict.fromkeys(f"{r['network']} {r['ddp_mode']}" for r in rows))
    sys.exit(call.finish(rows, PyTorch=f"{rows[0]['torch']} ({modes})", ZeRO=options.zero,
                         **{"threads a rank": 1, "threads of the one process": rows[0]["threads_whole"]}, **paths))


if __name__ == "__main__":
    main()
