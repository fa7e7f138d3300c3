"""Training steps beside PyTorch in all its modes: ./dev bench train [--networks a,b] [--threads 1,0].

A call goes over all rows several times (--passes). The contenders run whole steps (forward, loss, backward, update) in
turn, a slice each, on the same pinned cores; the machine's limits are measured in the same rotation. In the first pass
PyTorch runs eager and compiled (the loss inside what is compiled), and networks of convolutions both ways channels-last
too; later passes run the modes that came within a fifth of the fastest. A row quotes medians, and as its result the
median of the ratios inside a round. MKL runs its AVX-512 path also on AMD (bench/pytorch.py). What is written:
bench/call.py.
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
from report import Train

NETWORKS = ["mnist_cnn", "resnet18", "resnet50", "gpt2", "bert"]
NEAR = 1.2  # a mode slower than so many times the fastest of the first pass is not run again


def modes(network):
    is_convolutional = network.startswith("resnet") or network == "mnist_cnn"
    return ["eager", "compiled"] + (["channels_last", "compiled_channels_last"] if is_convolutional else [])


def ours(network, cpus):
    program = pathlib.Path(os.environ["TRIREME"]).parent / "bench_train"
    return contenders.Contender("trireme", [program, network, len(cpus)], cpus)


def peer(network, mode, cpus):
    command = [sys.executable, contenders.HERE / "train_peer.py", network, mode, len(cpus), ",".join(map(str, cpus))]
    return contenders.Contender(mode, command, cpus, pytorch.environment())


class Row:
    """All contenders on one network and thread count, over all passes of a call."""

    def __init__(self, network, cpus):
        self.network, self.cpus, self.modes = network, cpus, modes(network)
        self.rounds, self.bounds, self.peaks, self.failed, self.ready = [], [], {}, {}, {}

    def open(self):
        team = [ours(self.network, self.cpus)]
        for mode in self.modes:
            try:
                team.append(peer(self.network, mode, self.cpus))
            except RuntimeError as error:  # a mode that does not work here (no compiler) leaves the others
                self.failed[mode] = str(error)
        return team

    def measure(self, options, call):
        team = self.open()
        try:
            for _ in range(options.rounds):
                self.bounds.append(call.probe(self.cpus))
                turn, times = len(self.rounds) % len(team), {}
                for contender in team[turn:] + team[:turn]:
                    time.sleep(PAUSE_S)
                    times[contender.name] = contender.run(options.slice_ms)["median_us"]
                self.rounds.append(times)
            self.peaks |= {c.name: c.peak_bytes() for c in team}
            self.ready |= {c.name: c.ready for c in team}
        finally:
            for contender in team:
                contender.close()
        least = min(self.us(c.name) for c in team[1:])
        self.modes = [c.name for c in team[1:] if self.us(c.name) <= NEAR * least]

    def us(self, name):
        return statistics.median(r[name] for r in self.rounds if name in r)

    def ratio(self, name):
        ratios = [r[name] / r["trireme"] for r in self.rounds if name in r]
        return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]

    def facts(self):
        medians = {name: self.us(name) for name in self.ready}
        best = min(self.modes, key=medians.get)
        ceiling = statistics.median(b["f32_gflops"] for b in self.bounds)
        gflop = self.ready["trireme"]["gflop"]
        return {"network": self.network, "threads": len(self.cpus), "rounds": len(self.rounds),
                "ms": {name: round(us / 1e3, 3) for name, us in medians.items()},
                "ratio": {name: self.ratio(name) for name in medians if name != "trireme"}, "best_peer": best,
                "ratio_best_peer": self.ratio(best), "gflop": gflop, "ceiling_gflops": ceiling,
                "of_ceiling": {name: round(gflop * 1e6 / us / ceiling, 3) for name, us in medians.items()},
                "peak_mib": {name: round(bytes / 2**20, 1) for name, bytes in self.peaks.items()},
                "planned_mib": round(self.ready["trireme"]["planned_bytes"] / 2**20, 1), "failed": self.failed}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", default="1,0", help="0: all cores this process may use")
    parser.add_argument("--passes", type=int, default=3, help="over all rows")
    parser.add_argument("--rounds", type=int, default=1, help="on a row in each pass")
    parser.add_argument("--slice-ms", type=float, default=1000)
    arguments(parser)
    return parser.parse_args()


def main():
    options = parse()
    cores = sorted(os.sched_getaffinity(0))
    call = Call("train", options, lambda cpus: contenders.limits(options.limits, cpus))
    paths = pytorch.paths()
    counts = dict.fromkeys(threads or len(cores) for threads in numbers(options.threads))
    rows = [Row(network, cores[:threads]) for threads in counts for network in options.networks.split(",")]
    for index in range(options.passes):
        for row in rows:
            row.measure(options, call)
            print(f"pass {index + 1}  {Train.line(row.facts())}", flush=True)
    version = next(ready["version"] for ready in rows[0].ready.values() if "version" in ready)
    sys.exit(call.finish([row.facts() for row in rows], PyTorch=version, **paths))


if __name__ == "__main__":
    main()
