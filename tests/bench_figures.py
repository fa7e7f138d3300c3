# Figures are promises: what may be kept, what pages show of it, and what the check says to a table edited by hand.
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("TRIREME", str(ROOT / "build/release/trireme"))
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench")]
import call  # noqa: E402
import language_server_load  # noqa: E402
import language_server_report  # noqa: E402
import pages  # noqa: E402
import pytorch  # noqa: E402
import report  # noqa: E402
import serve_report  # noqa: E402
from checks import figures  # noqa: E402

passed = failed = 0


def expect(what, got, wanted=True):
    global passed, failed
    if got == wanted:
        passed += 1
    else:
        failed += 1
        print(f"{what}: got {got!r}, wanted {wanted!r}")


def train_row(network, ratio, share=0.8):
    return {"network": network, "threads": 2, "ms": {"trireme": 10.0, "eager": 10.0 * ratio}, "best_peer": "eager",
            "ratio_best_peer": [ratio, ratio - 0.1, ratio + 0.1], "ratio": {"eager": [ratio, ratio - 0.1, ratio + 0.1]},
            "of_ceiling": {"trireme": share, "eager": 0.3}, "peak_mib": {"trireme": 100.0, "eager": 900.0}}


def one_call(ratio, f32=(100, 101, 102), commit="abc", share=0.8):
    steady = {"f32_gflops": 102.0, "read_gbs": 31.0, "read_mean_gbs": 30.0}  # the best of a probe tells little
    probes = {2: [steady | {"f32_mean_gflops": f} for f in f32]}
    return {"bench": "train", "command": "./dev bench train", "machine": "M, 2 cores", "commit": commit,
            "started": "2026-01-01 00:00 UTC", "minutes": 5.0, "load": [0.1, 2.0], "limits": call.limits_of(probes),
            "facts": {"PyTorch": "2"}, "rows": [train_row("a", ratio, share), train_row("b", ratio * 4)]}


def rounds_end_in_time():
    """A call begins no round that would take it past its minutes, and has two whatever they take."""
    clock, real = [1000.0], call.time.time
    options = argparse.Namespace(out=None, keep=False)

    def count(seconds, wanted, minutes):
        under_way, turns = call.Call("none", options, None), []
        for turn in under_way.rounds(wanted, minutes):
            turns.append(turn)
            clock[0] += seconds
        return len(turns)
    call.time.time = lambda: clock[0]
    try:
        expect("rounds that fit", count(100, 3, 9), 3)
        expect("a third round would end too late", count(200, 3, 9), 2)
        expect("two rounds at least", count(2000, 3, 9), 2)
        expect("no bound", count(2000, 5, float("inf")), 5)
    finally:
        call.time.time = real


def a_root(folder):
    """A tree with pages that hold blocks and nothing in them."""
    root = Path(folder)
    (root / "docs").mkdir()
    for page in pages.PAGES:
        (root / page).write_text("no blocks\n")
    (root / "README.md").write_text("# T\n<!-- figures -->\n<!-- /figures -->\nend\n")
    (root / "docs/performance.md").write_text("x\n<!-- table: train -->\n<!-- /table: train -->\n"
                                              "<!-- older -->\n| a | 5 ms |\n<!-- /older -->\ny\n")
    (root / "docs/onnx.md").write_text("| all | 10 | 7 | 1 | 2 | 0 | 7 / 8 = 87.5 % |\n")
    return root


def refusing():
    steady = one_call(2.0)
    expect("steady", call.why_refused(steady), None)
    expect("one disturbed probe of twelve", call.why_refused(one_call(2.0, [100] * 11 + [50])), None)
    expect("disturbed", "varies by 30 %" in call.why_refused(one_call(2.0, [100] * 8 + [70] * 3)))
    reads = one_call(2.0)
    reads["limits"]["2"]["read_mean_gbs"][3] = 0.11
    expect("memory disturbed, rows that compute", call.why_refused(reads), None)
    expect("memory disturbed", "read_mean_gbs" in call.why_refused(dict(reads, bench="collectives")))
    expect("busy all through", "had 40 %" in call.why_refused(one_call(2.0, [41] * 8)))
    expect("one probe", "too few" in call.why_refused(one_call(2.0, [100])))
    expect("dirty", "differ from the commit" in call.why_refused(one_call(2.0, commit="abc-dirty")))
    expect("no probe", "not probed" in call.why_refused(dict(steady, limits={})))
    with tempfile.TemporaryDirectory() as folder:
        root = a_root(folder)
        expect("disturbed and wanted", call.finish(one_call(2.0, [100, 60, 100, 60]), True, "out", root), 3)
        expect("disturbed and not wanted", call.finish(one_call(2.0, [100, 60, 100, 60]), False, "out", root), 0)
        expect("nothing kept", (root / "bench/results").exists(), False)


def keeping():
    with tempfile.TemporaryDirectory() as folder:
        root = a_root(folder)
        for ratio in (9.0, 2.0, 3.0, 8.0):
            expect("kept", call.finish(one_call(ratio), True, "out", root), 0)
        calls = pages.read_calls(root / "bench/results/train.jsonl")
        expect("the last three", [c["rows"][0]["ratio_best_peer"][0] for c in calls], [2.0, 3.0, 8.0])
        readme, page = (root / "README.md").read_text(), (root / "docs/performance.md").read_text()
        expect("README quotes medians of three", "geometric mean 6.00 times" in readme)  # sqrt(3 * 12)
        expect("the page shows the last call", "| a | 2 | 10.00 | 80 | 80.00 (eager) |" in page)
        expect("with commit, command, load and spread", all(word in page for word in (
            "commit abc", "`./dev bench train`", "load 0.1 before, 2.0 after",
            "mean of a probe 100 to 102, varies 2 %", "M, 2 cores")))
        expect("older tables say so", "*Not taken again under the rule" in page and "| a | 5 ms |" in page)
        expect("writing again changes nothing", pages.write(root), [])
        edited = page.replace("80.00 (eager)", "90.00 (eager)")
        expect("a hand's edit is seen", pages.render(edited, root) != edited)
        call.finish(one_call(2.0, commit="def"), True, "out", root)
        expect("another commit begins anew", len(pages.read_calls(root / "bench/results/train.jsonl")), 1)
        expect("README quotes nothing of one call", "(1 of 3 calls)" in (root / "README.md").read_text())


def checking():
    expect("loose table", list(figures.loose_tables("a\n| x | 5.2 ms |\n")), [2])
    expect("loose ratio", list(figures.loose_tables("| x | 2.1 times |\n")), [1])
    expect("table in a block", list(figures.loose_tables("<!-- older -->\n| x | 5.2 ms |\n<!-- /older -->\n")), [])
    expect("table without figures", list(figures.loose_tables("| x | 3 ranks |\n")), [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.jsonl"
        for name, calls, wrong in (("good", [one_call(2.0)], 0), ("disturbed", [one_call(2.0, [100, 60] * 3)], 1),
                                   ("two commits", [one_call(2.0), one_call(2.0, commit="def")], 1)):
            path.write_text("".join(json.dumps(c) + "\n" for c in calls))
            expect(name, len(list(figures.wrong_calls(path))), wrong)


def words():
    table = "\n".join(report.Train.table([train_row("winograd", 2.0, 1.34)]))
    expect("no share above a ceiling", "| winograd | 2 | 10.00 | - |" in table and "134" not in table)
    expect("cost below its noise", report.of_noise([-0.7, -11.5, 82.6], "us"), "below noise, < 83 us")
    expect("cost above it", report.of_noise([38.6, 37.2, 56.2], "us"), "38.6 us (37.2 to 56.2)")
    row = {"part": "front", "form": "binary", "connections": 16, "front_us": [-0.7, -11.5, 82.6], "user_us": [1],
           "kernel_us": [1], "model_us": [1], "floor_us": [1]}
    expect("front end", "below noise" in "\n".join(serve_report.front_table([row])))
    amd = "MKL_VERBOSE oneMKL 2024.0 for Intel(R) 64 architecture Intel(R) Architecture processors, Lnx 2.60GHz lp64\n"
    avx = amd.replace("Intel(R) Architecture", "Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512) enabled")
    expect("MKL's generic path", "AVX-512" in pytorch.parse_mkl(amd), False)
    expect("MKL's AVX-512 path", "AVX-512" in pytorch.parse_mkl(avx))
    told = "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with bfloat16\n"
    expect("oneDNN", pytorch.parse_onednn(told), "Intel AVX-512")


def texts():
    """A server of language models beside a peer: its rows as lines, numbers and a table; the lengths it is asked for."""
    part = {"ours": [12.0, 11.0, 13.0], "peer": [5.0, 4.0, 6.0], "ratio": [2.4, 2.0, 2.75]}
    cost = {"us": [60.0, 50.0, 70.0], "user": [20.0, 1, 2], "kernel": [30.0, 1, 2], "between": [10.0, 1, 2]}
    rows = [{"part": "goodput", "ttft": "250ms", "tpot": "25ms", **part},
            {"part": "streams", "streams": 16, "prompt": 64, "new": 128, "of_alone": [0.93, 0.9, 0.95],
             "alone": [13.0, 1, 2], **part},
            {"part": "prefix", "known": 2000, "prompt": 2016, **part},
            {"part": "front", "request": cost, "token": cost},
            {"part": "ready", "file_mb": 16.0, "read": [3.0, 1, 2], **part}]
    kind = language_server_report.LanguageServer
    table = "\n".join(kind.table(rows))
    expect("goodput", "| 12.00 (11.00 to 13.00) | 5.00 (4.00 to 6.00) | 2.40 (2.00 to 2.75) |" in table)
    expect("no peer of the front end", "a request | 60.0 µs (50.0 to 70.0) | - | - |" in table)
    expect("every row has a line", [kind.line(r) != "" for r in rows], [True] * 5)
    quoted = kind.sentence(kind.numbers(rows))
    expect("quoted", "goodput 2.40" in quoted and "93 %" in quoted)
    expect("a part alone", kind.sentence(kind.numbers(rows[2:3])), "times llama.cpp's server: known prefix 2.40")
    with tempfile.TemporaryDirectory() as folder:
        first, again = (language_server_load.mixed_lengths(Path(folder) / name, 2560).read_text() for name in "ab")
        asked = [json.loads(line) for line in first.splitlines()]
        expect("the same schedule each time", first, again)
        expect("all fit", all(0 < a["input_length"] and a["input_length"] + a["output_length"] < 2560 for a in asked))
        expect("mixed", max(a["input_length"] for a in asked) > 20 * min(a["input_length"] for a in asked))


class FakeLimits:
    """Answers as bench_limits does, at another speed each time."""

    def __init__(self, rates):
        self.rates = list(rates)

    def run(self, _milliseconds):
        return {"f32_gflops": 100.0, "read_gbs": 10.0, "f32_mean_gflops": self.rates.pop(0), "read_mean_gbs": 9.0}

    def close(self):
        pass


def calling():
    with tempfile.TemporaryDirectory() as folder:
        options = argparse.Namespace(out=f"{folder}/out.jsonl", keep=True)
        one = call.Call("train", options, lambda cpus: FakeLimits([100, 60, 100, 60]))
        for _ in range(4):
            one.probe([0, 1])
        expect("a disturbed call asked to keep", one.finish(one_call(2.0)["rows"]), 3)
        expect("its results are there", len(pages.read_calls(Path(folder) / "out.jsonl")), 1)
    with tempfile.TemporaryDirectory() as folder:
        def git(*words):
            command = ["git", "-c", "user.name=n", "-c", "user.email=e", *words]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        git("init", "-q")
        (Path(folder) / "docs").mkdir()
        for name in ("a.cc", "docs/p.md"):
            (Path(folder) / name).write_text("1")
        git("add", ".")
        git("commit", "-qm", "m")
        (Path(folder) / "docs/p.md").write_text("2")
        expect("pages do not make sources dirty", call.commit(folder).endswith("-dirty"), False)
        (Path(folder) / "a.cc").write_text("2")
        expect("sources do", call.commit(folder).endswith("-dirty"))


refusing()
keeping()
checking()
words()
texts()
calling()
rounds_end_in_time()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
