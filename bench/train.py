"""Training steps beside PyTorch, eager and compiled: ./dev bench train [--networks a,b] [--threads 1,0].

The contenders run whole steps (forward, backward, update) in turn, a slice each, round after round, on the same pinned
cores; the machine's limits are measured in the same rotation. A row quotes medians over rounds, and as its result the
median of the ratios inside a round. PyTorch runs eager, eager with channels-last memory for convolutional networks,
and compiled where that works; the fastest counts. Writes JSON lines; --markdown FILE puts a table between the marks
"<!-- train -->" and "<!-- /train -->" of a page.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import contenders
import report
from models import PAUSE_S, ROOT, commit, machine, numbers

NETWORKS = ["mnist_cnn", "resnet18", "resnet50", "gpt2", "bert"]


def modes(network):
    return ["eager", "compiled"] + (["channels_last"] if network.startswith("resnet") else [])


def ours(network, cpus):
    program = pathlib.Path(os.environ["TRIREME"]).parent / "bench_train"
    return contenders.Contender("trireme", [program, network, len(cpus)], cpus)


def peer(network, mode, cpus):
    command = [sys.executable, contenders.HERE / "train_peer.py", network, mode, len(cpus), ",".join(map(str, cpus))]
    return contenders.Contender(mode, command, cpus)


class Race:
    """All contenders on one network and thread count."""

    def __init__(self, network, cpus, options):
        self.network, self.cpus, self.options = network, cpus, options
        self.team = [ours(network, cpus)]
        self.failed = {}
        for mode in modes(network):
            try:
                self.team.append(peer(network, mode, cpus))
            except RuntimeError as error:  # a mode that does not work here (no compiler) leaves the others
                self.failed[mode] = str(error)
        self.limits = contenders.limits(options.limits, cpus)

    def measure(self):
        self.rounds, self.bounds = [], []
        for index in range(self.options.rounds):
            self.bounds.append(self.limits.run(200))
            turn = index % len(self.team)
            times = {}
            for contender in self.team[turn:] + self.team[:turn]:
                time.sleep(PAUSE_S)
                times[contender.name] = contender.run(self.options.slice_ms)["median_us"]
            self.rounds.append(times)

    def ratio(self, name):
        ratios = [r[name] / r["trireme"] for r in self.rounds]
        return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]

    def row(self):
        ready = self.team[0].ready
        medians = {c.name: statistics.median(r[c.name] for r in self.rounds) for c in self.team}
        best = min((name for name in medians if name != "trireme"), key=medians.get)
        ceiling = statistics.median(b["f32_gflops"] for b in self.bounds)
        peaks = {c.name: round(c.peak_bytes() / 2**20, 1) for c in self.team}
        return {"network": self.network, "threads": len(self.cpus), "rounds": len(self.rounds),
                "ms": {name: round(us / 1e3, 3) for name, us in medians.items()},
                "ratio": {name: self.ratio(name) for name in medians if name != "trireme"}, "best_peer": best,
                "ratio_best_peer": self.ratio(best), "gflop": ready["gflop"], "ceiling_gflops": ceiling,
                "of_ceiling": {name: round(ready["gflop"] * 1e6 / us / ceiling, 3) for name, us in medians.items()},
                "peak_mib": peaks, "planned_mib": round(ready["planned_bytes"] / 2**20, 1), "failed": self.failed,
                "version": self.team[1].ready["version"]}

    def close(self):
        for contender in self.team + [self.limits]:
            contender.close()


def line(row):
    peers = "  ".join(f"{name} {row['ms'][name]:9.2f} ms ({r[0]:.2f}x)" for name, r in row["ratio"].items())
    return (f"{row['network']:10} threads {row['threads']:2}  ours {row['ms']['trireme']:9.2f} ms "
            f"({100 * row['of_ceiling']['trireme']:.0f} % of the GEMM ceiling)  {peers}  "
            f"peak MiB {row['peak_mib']['trireme']:.0f} / {row['peak_mib'][row['best_peer']]:.0f}")


def summary(rows):
    ratios = [r["ratio_best_peer"][0] for r in rows]
    return (f"geometric mean {report.geometric_mean(ratios):.2f} times the fastest PyTorch mode; "
            f"{sum(x >= 1 for x in ratios)} of {len(rows)} rows at least level")


def markdown(rows):
    head = (f"{rows[0]['machine']}; commit {rows[0]['commit']}; PyTorch {rows[0]['version']}; "
            f"{rows[0]['rounds']} rounds.")
    lines = [head, "", summary(rows) + ".", "",
             "| network | threads | Trireme ms | % of ceiling | fastest PyTorch ms (mode) | % of ceiling | times | "
             "peak MiB: Trireme / PyTorch |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        best, ratio = r["best_peer"], r["ratio_best_peer"]
        lines.append(f"| {r['network']} | {r['threads']} | {r['ms']['trireme']:.2f} | "
                     f"{100 * r['of_ceiling']['trireme']:.0f} | {r['ms'][best]:.2f} ({best}) | "
                     f"{100 * r['of_ceiling'][best]:.0f} | {ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}) | "
                     f"{r['peak_mib']['trireme']:.0f} / {r['peak_mib'][best]:.0f} |")
    return "\n".join(lines) + "\n"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", default="1,0", help="0: all cores this process may use")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice-ms", type=float, default=1000)
    parser.add_argument("--out", default=str(ROOT / "out/bench/train.jsonl"))
    parser.add_argument("--markdown", help="page that gets the table, for example docs/performance.md")
    parser.add_argument("--limits", default=str(pathlib.Path(os.environ["TRIREME"]).parent / "bench_limits"))
    return parser.parse_args()


def main():
    options = parse()
    cores = sorted(os.sched_getaffinity(0))
    out = pathlib.Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with out.open("w", encoding="utf-8") as log:
        for threads in numbers(options.threads):
            for network in options.networks.split(","):
                race = Race(network, cores[:threads or len(cores)], options)
                try:
                    race.measure()
                    row = dict(race.row(), machine=machine(), commit=commit())
                finally:
                    race.close()
                rows.append(row)
                print(line(row), flush=True)
                print(json.dumps(row), file=log, flush=True)
    print(summary(rows))
    if options.markdown:
        report.into_page(pathlib.Path(options.markdown), "train", markdown(rows))


if __name__ == "__main__":
    main()
