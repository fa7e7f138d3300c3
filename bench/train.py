"""Training steps beside PyTorch in all its modes: ./dev bench train [--networks a,b] [--threads 1,0].

Networks are those of `zoo:` by their names, and onnx:NAME: files that PyTorch exports of bench/train_networks.py, into
out/bench/train. These begin with the weights of the peer and take its data, so that the losses of the first steps must
agree. A step on a reference kernel that takes more than a fiftieth of the time is printed as a defect.

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
import train_networks
from call import ROOT, Call, arguments
from models import PAUSE_S, numbers
from report import Train
from zoo import EXPORTERS, SLOW_KERNELS, Exported

OWN = ["mnist_cnn", "resnet18", "resnet50", "gpt2", "bert"]
FILE = "onnx:"
NEAR = 1.2  # a mode slower than so many times the fastest of the first pass is not run again
# How far the losses of the first steps may lie apart, as a share of what the steps change, or of the loss where the
# sums of all samples round more than that.
LOSS_TOLERANCE, LOSS_ROUNDING = 0.05, 1e-5


class File(Exported):
    """A network of train_networks as one exporter wrote it."""
    program, home = train_networks.__file__, ROOT / "out/bench/train"


class Network:
    """What a row trains, as we and as the peer are told."""

    def __init__(self, name, exporter):
        self.name, self.ours, self.peer, self.file = name, name, name, None
        self.is_convolutional = name.startswith("resnet") or name == "mnist_cnn"
        if name.startswith(FILE):
            task = train_networks.tasks()[name.removeprefix(FILE)]
            self.file = File(name.removeprefix(FILE), exporter, task.batch)
            self.ours, self.peer = self.file.folder, f"{name}:{self.file.folder}"
            self.is_convolutional = task.is_convolutional

    def modes(self):
        return ["eager", "compiled"] + (["channels_last", "compiled_channels_last"] if self.is_convolutional else [])


def ours(network, cpus):
    program = pathlib.Path(os.environ["TRIREME"]).parent / "bench_train"
    return contenders.Contender("trireme", [program, network.ours, len(cpus)], cpus)


def peer(network, mode, cpus):
    command = [sys.executable, contenders.HERE / "train_peer.py", network.peer, mode, len(cpus),
               ",".join(map(str, cpus))]
    return contenders.Contender(mode, command, cpus, pytorch.environment())


def losses_differ(ours, theirs):
    """The largest difference of losses, as a share of what the steps changed them by."""
    change = max(abs(theirs[0] - loss) for loss in theirs)
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    return worst / max(change, abs(theirs[0]) * LOSS_ROUNDING / LOSS_TOLERANCE)


class Row:
    """All contenders on one network and thread count, over all passes of a call."""

    def __init__(self, network, cpus):
        self.network, self.cpus, self.modes = network, cpus, network.modes()
        self.rounds, self.bounds, self.peaks, self.failed, self.ready = [], [], {}, {}, {}
        self.error = None

    def open(self):
        team = [ours(self.network, self.cpus)]
        for mode in self.modes:
            try:
                team.append(peer(self.network, mode, self.cpus))
            except RuntimeError as error:  # a mode that does not work here (no compiler) leaves the others
                self.failed[mode] = str(error)
        return team

    def measure(self, options, call):
        """One pass. A network that cannot be exported or that we refuse leaves the call the other rows."""
        if self.error:
            return
        try:
            self.error = self.network.file.export() if self.network.file else None
            team = None if self.error else self.open()
        except RuntimeError as error:
            self.error, team = str(error), None
        if team:
            self.run(team, options, call)

    def run(self, team, options, call):
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
        differs = self.losses_differ()
        return {"network": self.network.name, "threads": len(self.cpus), "rounds": len(self.rounds),
                "ms": {name: round(us / 1e3, 3) for name, us in medians.items()},
                "ratio": {name: self.ratio(name) for name in medians if name != "trireme"}, "best_peer": best,
                "ratio_best_peer": self.ratio(best), "gflop": gflop, "ceiling_gflops": ceiling,
                "of_ceiling": {name: round(gflop * 1e6 / us / ceiling, 3) for name, us in medians.items()},
                "peak_mib": {name: round(bytes / 2**20, 1) for name, bytes in self.peaks.items()},
                "planned_mib": round(self.ready["trireme"]["planned_bytes"] / 2**20, 1), "failed": self.failed,
                "losses_differ": differs, "agrees": all(d <= LOSS_TOLERANCE for d in differs.values()),
                "slow": [s for s in self.ready["trireme"]["steps"] if s["kernel"] in SLOW_KERNELS]}

    def line(self):
        return f"{self.network.name:10} {self.error}" if self.error else Train.line(self.facts())

    def losses_differ(self):
        """By peer mode; nothing where the weights are not the peer's."""
        if not self.network.file:
            return {}
        losses = self.ready["trireme"]["losses"]
        return {name: round(losses_differ(losses, ready["losses"]), 4) for name, ready in self.ready.items()
                if name != "trireme"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = OWN + [FILE + name for name in train_networks.tasks()]
    parser.add_argument("--networks", default=",".join(names))
    parser.add_argument("--exporter", default="script", choices=EXPORTERS, help="of the ONNX files")
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
    networks = [Network(name, options.exporter) for name in options.networks.split(",")]
    rows = [Row(network, cores[:threads]) for threads in counts for network in networks]
    for index in range(options.passes):
        for row in rows:
            row.measure(options, call)
            print(f"pass {index + 1}  {Train.line(row.facts())}", flush=True)
    version = next(ready["version"] for ready in rows[0].ready.values() if "version" in ready)
    facts = [row.facts() for row in rows]
    code = call.finish(facts, PyTorch=version, **paths)
    sys.exit(code if all(row["agrees"] for row in facts) else 1)


if __name__ == "__main__":
    main()
