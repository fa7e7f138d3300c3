# The conformance suite of communicators on MPI ranks, two to four processes on this machine.
# timeout: 240
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import _ranks
import _serving
from _training import make_patterns


def conformance():
    """Totals (passed, failed) over world sizes."""
    passed = failed = 0
    for ranks in (2, 3, 4):
        code, output = _ranks.run(ranks, [_ranks.TEST_COMM, "--gtest_filter=Mpi/*", "--gtest_color=no"])
        good, bad = _ranks.conformance(ranks, code, output)
        print(f"{ranks} ranks: {good} cases passed, {bad} failed")
        if bad:
            print(output[-8000:])
        passed += good
        failed += bad
    return passed, failed


def bench_measures_all():
    code, output = _ranks.run(2, [_ranks.TRIREME, "comm", "bench", "--op", "all", "--max", "64KiB", "--time", "10ms",
                                  "--json"])
    assert code == 0, output
    result = json.loads(output[output.index("{"):])
    assert (result["communicator"], result["ranks"]) == ("mpi", 2), result
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert result["machine"]["processors"] <= share, "two ranks do not share out the processors"
    assert [o["op"] for o in result["operations"]] == ["all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                       "all_to_all"], result
    for operation in result["operations"]:
        assert [s["bytes"] for s in operation["sizes"]] == [1024, 4096, 16384, 65536], operation
        assert all(s["seconds"] > 0 and s["bus_gb_s"] > 0 for s in operation["sizes"]), operation


def other_size_is_refused():
    code, output = _ranks.run(2, [_ranks.TRIREME, "comm", "bench", "--ranks", "3"])
    assert code == 2 and "the job has 2 ranks, 3 are asked for" in output, f"{code}: {output}"


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stopped_rank_is_named():
    """A rank that the system stops says nothing any more: the others name it and end."""
    process = _ranks.start(3, [_ranks.TRIREME, "comm", "bench", "--time", "60s", "--max", "4KiB", "--deadline",
                               "5s"])
    ranks = []

    def all_work():
        ranks[:] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return len(ranks) == 3 and min(map(cpu_seconds, ranks)) > 1

    _serving.until(all_work, "the ranks do not run")
    last = max(map(int, ranks))  # started last: rank 2
    os.kill(last, signal.SIGSTOP)
    try:
        output, _ = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 6, f"{process.returncode}: {output}"
    assert "rank 2 does not answer" in output and " waits " in output, output


CONFIG = """
run: {{name: run, directory: {directory}, steps: 60, seed: 11}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [48, 32], classes: 4, dropout: 0.1}}}}
data: {{path: {data}, hold_out: 0.1}}
batch: {{global: 32, micro: 4}}
optimizer: {{kind: adamw}}
schedule: {{lr: 0.003}}
log: {{progress: 0s}}
"""


def training_has_the_bits_of_local_ranks():
    with tempfile.TemporaryDirectory(prefix="mpi_ranks") as room:
        room = Path(room)
        make_patterns(room / "data")
        for layout in (["--dp", "4"], ["--dp", "2", "--zero", "3"], ["--dp", "2", "--tp", "2"]):
            models = {}
            for kind in ("local", "mpi"):
                name = kind + "".join(layout)
                config = room / f"{name}.yaml"
                config.write_text(CONFIG.format(directory=room / name, data=room / "data"))
                words = [_ranks.TRIREME, "train", config, "--quiet", *layout]
                ranks = 2 if "--zero" in layout else 4
                code, output = _ranks.run(ranks if kind == "mpi" else 1, words, under_mpi=kind == "mpi")
                assert code == 0, f"{name}: {code}: {output}"
                models[kind] = (room / name / "model/run/1/model.onnx").read_bytes()
            assert models["local"] == models["mpi"], f"{layout}: other weights"


def decoding_ranks_may_be_processes():
    """Processes answer as one rank does, in f32 and with weights and products in few bits: by heads, by layers."""
    model = "zoo:llama:layers=2,width=64,heads=4,kv_heads=2,inner=128,vocabulary=97"
    words = [_ranks.TRIREME, "generate", model, "--prompt-ids", "1,5,9", "--max-tokens", 12, "--ignore-eos", "--json",
             "--threads", 1]
    for more in ([], ["--weights", "int8", "--weight-group", 32], ["--precision", "bf16"]):
        answers = {}
        for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2)):
            code, output = _ranks.run(tp * pp, [*words, *more, "--tp", tp, "--pp", pp], under_mpi=tp * pp > 1)
            assert code == 0, f"{more} on tp {tp}, pp {pp}: {code}: {output}"
            answer = json.loads(output.strip().splitlines()[-1])
            answers[tp, pp] = answer["tokens"], answer["log_probability"]
        assert len(answers[1, 1][0]) == 12, answers
        assert answers[1, 2] == answers[1, 1] and answers[2, 2] == answers[2, 1], f"{more}: {answers}"
        assert answers[2, 1][0] == answers[1, 1][0], f"{more}: {answers}"


def main():
    reason = _ranks.why_no_mpi()
    if reason:
        print(f"skipped: {reason}")
        print("0 passed, 0 failed, 1 skipped")
        return
    passed, failed = conformance()
    for case in (bench_measures_all, other_size_is_refused, stopped_rank_is_named,
                 training_has_the_bits_of_local_ranks, decoding_ranks_may_be_processes):
        try:
            case()
            passed += 1
        except AssertionError as wrong:
            failed += 1
            print(f"FAILED {case.__name__}: {wrong}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
