"""One call of one benchmark on one commit: what every table is made of (docs/decisions/0051).

A call probes the machine's limits all through, beside its rows. When it ends it writes out/bench/NAME.jsonl, and with
--keep, if the machine stood still and the sources are those of a commit, bench/results/NAME.jsonl and the pages. The
kept file holds the last three calls of one commit; a call on another commit begins it anew.
"""
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time

import pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_VARIATION = 0.10  # of the probe's own results; above it a call keeps nothing
KEPT_CALLS = 3
PROBE_MS = 240
SETTLE_S = 0.3  # before a probe: threads of what was measured before it spin on for a while
# What judges a call: what the machine did on average in each probe. Its limits are the best of a probe, which a busy
# machine reaches now and then. A call is judged by the limits that its rows are bound by; both are printed.
F32, READ = "f32_mean_gflops", "read_mean_gbs"
BOUND_BY = {"collectives": (F32, READ)}  # every other benchmark computes: (F32,)
LEAST_PROBES = 3
MINUTES = 9.0  # of a call that is to end within ten: its last round is begun only if it ends before
LEAST_ROUNDS = 2
LEAST_MEAN = 0.85  # of the f32 limit: a machine that is as busy all through does not vary


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def commit(root=ROOT):
    """The commit of the sources, with -dirty where they differ from it; results and pages do not count."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    changed = git("status", "--porcelain", "--", ".", ":!bench/results", ":!docs", ":!README.md")
    return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")


def quantile(values, q):
    ordered = sorted(values)
    return ordered[round(q * (len(ordered) - 1))]


def variation(values):
    """How far the probes of a call lie apart: 90th less 10th percentile, over the median. One probe of ten may be
    disturbed: rows are medians too."""
    return (quantile(values, 0.9) - quantile(values, 0.1)) / quantile(values, 0.5)


def limits_of(probes):
    """{threads: {limit: [median, least, most, variation]}} of all probes of a call."""
    def spread(values):
        return [quantile(values, 0.5), min(values), max(values), round(variation(values), 3)]
    return {str(threads): {"probes": len(samples)} | {key: spread([s[key] for s in samples]) for key in samples[0]}
            for threads, samples in sorted(probes.items()) if samples}


def why_refused(call):
    """Why a call is not kept, in words, or None."""
    if not call["limits"]:
        return "the limits of the machine were not probed"
    for threads, limits in call["limits"].items():
        if limits["probes"] < LEAST_PROBES:
            return f"{limits['probes']} probes on {threads} threads are too few to tell how steady the machine was"
        if limits[F32][0] < LEAST_MEAN * limits["f32_gflops"][0]:
            share = limits[F32][0] / limits["f32_gflops"][0]
            return f"the probe on {threads} threads had {100 * share:.0f} % of their processors: others used them"
        for key in BOUND_BY.get(call["bench"], (F32,)):
            if limits[key][3] > MOST_VARIATION:
                return (f"the probe of {key} on {threads} threads varies by {100 * limits[key][3]:.0f} %, more than "
                        f"{100 * MOST_VARIATION:.0f} %: the machine was disturbed")
    if call["commit"].endswith("-dirty"):
        return "the sources differ from the commit"
    if not call["rows"]:
        return "there are no rows"
    return None


def keep(call, results):
    """Adds the call to the kept ones of its commit; the file has the last three."""
    path = results / f"{call['bench']}.jsonl"
    kept = [c for c in pages.read_calls(path) if c["commit"] == call["commit"] and c["machine"] == call["machine"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(c) + "\n" for c in [*kept, call][-KEPT_CALLS:]), encoding="utf-8")


class Call:
    """A call under way. `open_limits(cpus)` starts a process that answers as bench_limits does."""

    def __init__(self, name, options, open_limits):
        self.name, self.options, self.open_limits = name, options, open_limits
        self.probes, self.teams, self.began = {}, {}, time.time()
        self.load = [os.getloadavg()[0]]
        self.commit = commit()

    def probe(self, cpus):
        """The machine's limits on these processors, now."""
        threads = len(cpus)
        if threads not in self.teams:
            self.teams[threads] = self.open_limits(cpus)
        time.sleep(SETTLE_S)
        answer = self.teams[threads].run(PROBE_MS)
        self.probes.setdefault(threads, []).append(answer)
        return answer

    def rounds(self, wanted, minutes):
        """Numbers of rounds: as many as wanted, but none that would end, if it takes as long as the longest so far,
        later than `minutes` after the call began. Two there are at least."""
        longest = 0.0
        for turn in range(wanted):
            begun = time.time()
            if turn >= LEAST_ROUNDS and begun + longest > self.began + 60 * minutes:
                print(f"{turn} rounds of {wanted}: another would take the call past {minutes:g} minutes", flush=True)
                return
            yield turn
            longest = max(longest, time.time() - begun)

    def record(self, rows, **facts):
        self.load.append(os.getloadavg()[0])
        started = datetime.datetime.fromtimestamp(self.began, datetime.timezone.utc)
        words = [pathlib.Path(sys.argv[0]).stem, *(w for w in sys.argv[1:] if w != "--keep")]
        return {"bench": self.name, "command": "./dev bench " + shlex.join(words), "machine": machine(),
                "commit": self.commit, "started": started.strftime("%Y-%m-%d %H:%M UTC"),
                "minutes": round((time.time() - self.began) / 60, 1), "load": [round(x, 2) for x in self.load],
                "limits": limits_of(self.probes), "facts": facts, "rows": rows}

    def finish(self, rows, **facts):
        """Writes what may be written; the exit code."""
        for team in self.teams.values():
            team.close()
        call = self.record(rows, **facts)
        out = pathlib.Path(self.options.out or ROOT / f"out/bench/{self.name}.jsonl")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(call) + "\n", encoding="utf-8")
        return finish(call, self.options.keep, out, ROOT)


def finish(call, wanted, out, root):
    """Keeps a call that may be kept; says why not otherwise, which is an error where keeping was asked for."""
    refused = why_refused(call)
    print(f"{call['bench']}: {pages.headline(call)}")
    if refused:
        print(f"not kept: {refused}; the results are in {out}")
        return 3 if wanted else 0
    if wanted:
        keep(call, root / "bench/results")
        changed = pages.write(root)
        print(f"kept in bench/results/{call['bench']}.jsonl; pages written: {' '.join(changed) or 'none'}")
    else:
        print(f"the results are in {out}; --keep writes bench/results and the pages")
    return 0


def arguments(parser):
    """What all benchmarks take."""
    parser.add_argument("--out", help="file of the results; default: out/bench/NAME.jsonl")
    parser.add_argument("--keep", action="store_true",
                        help="write bench/results and the pages, if the machine stood still (exit code 3 if not)")
    parser.add_argument("--limits", default=str(pathlib.Path(os.environ["TRIREME"]).parent / "bench_limits"))
