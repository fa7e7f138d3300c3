"""All-reduce of local ranks beside copies by all ranks at once: ./dev bench collectives [--ranks 2,4] [--sizes 64,256].

Rows in turn, round after round, each a call of `trireme comm bench`, which measures operation and copy in turns. Both
move 2 n bytes a rank: a copy reads n of one buffer and writes n of another; of an all-reduce in place of r ranks each
reads n / r of every rank and writes n / r to every rank, so it touches half of the memory, and beyond the caches can
reach MOST_OF_COPY. More is refused: the sizes fit the caches. What is written: bench/call.py.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import contenders
from call import Call, arguments
from models import numbers
from report import Collectives


MOST_OF_COPY = 2.0


def measure(ranks, size, options):
    """(algorithm GB/s, copy GB/s) of an all-reduce in place."""
    command = [os.environ["TRIREME"], "comm", "bench", "--kind", "local", "--ranks", str(ranks), "--op", "all_reduce",
               "--min", str(size), "--max", str(size), "--time", f"{options.slice_ms}ms", "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    point = told["operations"][0]["sizes"][0]
    return point["algorithm_gb_s"], point["memcpy_gb_s"]


def row(ranks, size, rounds):
    """Of rounds of (algorithm GB/s, copy GB/s)."""
    def triple(values):
        return [round(f(values), 3) for f in (statistics.median, min, max)]
    most = statistics.median([a / c for a, c in rounds])
    if most > MOST_OF_COPY:
        raise ValueError(f"{100 * most:.0f} % of a copy for {size >> 20} MiB on {ranks} ranks: not beyond the caches")
    return {"ranks": ranks, "bytes": size, "gbytes_s": triple([a for a, _ in rounds]),
            "moved_gbytes_s": triple([2 * ranks * a for a, _ in rounds]), "of_copy": triple([a / c for a, c in rounds])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="more than there are cores are left out")
    parser.add_argument("--sizes", default="64,256", help="MiB; beyond the caches")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slice-ms", type=int, default=300)
    arguments(parser)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    call = Call("collectives", options, lambda cpus: contenders.limits(options.limits, cpus))
    found = {(r, s << 20): [] for r in numbers(options.ranks) if r <= len(cores) for s in numbers(options.sizes)}
    for _ in range(options.rounds):
        call.probe(cores)
        for (ranks, size), rounds in found.items():
            rounds.append(measure(ranks, size, options))
    rows = [row(*key, rounds) for key, rounds in found.items()]
    for one in rows:
        print(Collectives.line(one), flush=True)
    sys.exit(call.finish(rows))


if __name__ == "__main__":
    main()
