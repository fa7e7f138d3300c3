# Batch jobs with the real program: every row once, whatever is killed, stopped, full, changed or taken away.
# timeout: 280
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from _batch import START_AGAIN, Job, expected, make_model, row, survive_kills, write_rows
from _serving import TRIREME, run_cases

KILLS = 50
scratch = Path(tempfile.mkdtemp(prefix="trireme-batch-"))


def answers():
    """Rows come in order, each once, with the numbers that NumPy has."""
    job = Job(scratch / "answers")
    out, _ = job.run()
    assert "10 of 10" in out and "500 of 500" in out, out
    lines = job.lines()
    assert [line["id"] for line in lines] == [f"row-{i}" for i in range(500)]
    got = np.array([line["y"] for line in lines])
    assert np.allclose(got, expected([row(i) for i in range(500)]), atol=1e-5)
    verified = json.loads(job.look("verify", "--json"))
    assert verified["whole"] and verified["rows"] == 500, verified
    report = (job.output / "_job/report.md").read_text()
    assert "500 rows in 10 chunks" in report and "the model computes" in report, report


def formats():
    """The same rows in every format of lines and tables, as far as this build writes it."""
    for form in ("csv", "npy", "parquet", "arrow"):
        job = Job(scratch / f"format_{form}", output_format=form)
        text = job.file.read_text()
        if form == "npy":  # one tensor
            job.file.write_text(text.replace('"keep": ["id"]', '"keep": []'))
        process = job.start()
        _, err = process.communicate(timeout=60)
        if process.returncode == 4 and "Arrow" in err:
            continue
        assert process.returncode == 0, err
        job.look("verify")
        if form == "npy":
            got = np.concatenate([np.load(path) for path in sorted(job.output.glob("part-*.npy"))])
            assert np.allclose(got, expected([row(i) for i in range(500)]), atol=1e-5)


def kills():
    """kill -9 at random moments, alone and of two workers."""
    jobs = survive_kills(scratch / "kills", KILLS)
    print(f"{KILLS} kills over {jobs} jobs")


def stop_between_transactions(job, process):
    """Stops a worker that does not hold the journal just then: who waits for that lock waits for the worker."""
    with open(job.output / "_job/journal", "r+b") as journal:
        while True:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            try:
                fcntl.lockf(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return  # closing the file lets go
            except BlockingIOError:
                process.send_signal(signal.SIGCONT)
                time.sleep(0.05)


def stopped_worker():
    """A worker that is stopped past its lease has lost its chunks, and commits nothing when it goes on."""
    form = {"rows": (1500,), "slow": 20, "chunk_rows": 100, "lease": "1s"}
    whole = Job(scratch / "stopped_whole", **form)
    whole.run()
    job = Job(scratch / "stopped", **form)
    first = job.start()
    job.wait_for(lambda: job.some_are_done(), first)
    stop_between_transactions(job, first)
    _, err = job.run()
    assert job.parts() == whole.parts(), err[-800:]
    first.send_signal(signal.SIGCONT)
    assert first.wait(timeout=60) == 0
    assert job.parts() == whole.parts()
    assert job.status()["chunks_done"] == 15
    job.look("verify")


def helpers_come_and_go():
    """Workers that join in the middle take part; half of them are lost, and no row is."""
    # Long enough that the others have opened their models before the first has done it all.
    form = {"rows": (4000,), "slow": 50, "chunk_rows": 50, "lease": "2s"}
    whole = Job(scratch / "helpers_whole", **form)
    whole.run()
    job = Job(scratch / "helpers", **form)
    workers = [job.start()]
    job.wait_for(lambda: job.some_are_done(2), workers[0])
    workers += [job.start() for _ in range(3)]
    job.wait_for(lambda: len(job.status()["workers"]) == 4, workers[0])
    for process in workers[:2]:
        process.kill()
    codes = [process.wait(timeout=120) for process in workers]
    assert codes[2:] == [0, 0], codes
    assert job.parts() == whole.parts()
    job.look("verify")


def preempted():
    """SIGTERM ends with 75 within the grace; `resume` goes on and ends with the same bytes."""
    # More rows than a worker has in hand at a time: what it has is finished within the grace, the rest is not.
    form = {"rows": (8000,), "slow": 20, "chunk_rows": 200}
    whole = Job(scratch / "preempted_whole", **form)
    whole.run()
    job = Job(scratch / "preempted", **form)
    for grace in ("0s", "10s"):
        process = job.start("--grace", grace)
        before = len(list(job.output.glob("part-*")))
        job.wait_for(lambda: job.some_are_done(before + 1), process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == START_AGAIN, (process.returncode, err[-800:])
        assert "reason=\"signal Terminated\"" in err, err[-800:]
        assert not list((job.output / "_job/tmp").iterdir())
    status = job.status()
    assert status["workers"] == [] and 0 < status["chunks_done"] < 40, status
    job.look("verify", code=1)
    done = subprocess.run([TRIREME, "batch", "resume", str(job.output)], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    assert job.parts() == whole.parts()


def early_signals():
    """A signal before the job has begun asks for another start too."""
    pipe = scratch / "early.yaml"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)  # holds it open: who reads it waits
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        process = subprocess.Popen([TRIREME, "batch", str(pipe)])
        while str(pipe) not in [os.path.realpath(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]:
            assert process.poll() is None, process.returncode
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=60) == START_AGAIN, (number, process.returncode)
    os.close(end)


def odd_rows():
    """A line without numbers fails alone, wherever it stands; where no line has any, that is said."""
    job = Job(scratch / "odd", rows=(100,))
    lines = (job.directory / "in0.jsonl").read_text().splitlines()
    lines[3] = '{"id": "row-3", "x": "n/a"}'
    (job.directory / "in0.jsonl").write_text("\n".join(lines) + "\n")
    _, err = job.run()
    assert [line["id"] for line in job.lines()] == [f"row-{i}" for i in range(100) if i != 3]
    got = np.array([line["y"] for line in job.lines()])
    assert np.allclose(got, expected([row(i) for i in range(100) if i != 3]), atol=1e-5)
    assert "no row was answered" not in err, err
    none = Job(scratch / "none", rows=(100,))
    (none.directory / "in0.jsonl").write_text('{"id": "a", "x": "n/a"}\n' * 100)
    _, err = none.run()
    assert "no row was answered" in err, err


def spot_notice():
    """A notice of the cloud stops a worker as a signal does."""
    job = Job(scratch / "spot", rows=(2000,), slow=60, chunk_rows=100)
    notice = job.directory / "notice"
    process = job.start("--preempt-notice", notice, "--grace", "0s")
    job.wait_for(lambda: job.some_are_done(), process)
    notice.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == START_AGAIN and "taken away" in err, err[-800:]
    process = job.start("--preempt-notice", f"!test -e {notice}")
    _, err = process.communicate(timeout=60)
    assert process.returncode == START_AGAIN, (process.returncode, err[-800:])
    notice.unlink()
    job.run("--preempt-notice", notice)
    job.look("verify")


def full_disk():
    """No room for a part: nothing half-written stays, the worker ends with 75 and says why."""
    job = Job(scratch / "full", chunk_rows=100)
    whole = Job(scratch / "full_whole", chunk_rows=100)
    whole.run()
    least = min(len(data) for data in whole.parts().values())

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (least - 100, least - 100))

    _, err = job.run("--patience", "1s", code=START_AGAIN, preexec_fn=small_files)
    assert "File too large" in err, err[-800:]
    assert job.parts() == {} and not list((job.output / "_job/tmp").iterdir()), job.parts().keys()
    job.run()
    assert job.parts() == whole.parts()


def bad_rows():
    """A corrupt row goes to the error file with its place; max_errors ends the job, and more may be allowed."""
    job = Job(scratch / "bad")
    lines = (job.directory / "in0.jsonl").read_text().splitlines()
    lines[70] = '{"id": "row-70", "x": [1, 2'
    lines[71] = json.dumps({"id": "row-71", "x": [1, 2, 3]})
    (job.directory / "in0.jsonl").write_text("\n".join(lines) + "\n")
    _, err = job.run("--max-errors", "1", code=5)
    assert "more than max_errors = 1" in err, err[-800:]
    out, _ = job.run("--max-errors", "2")
    assert "2 failed" in out, out
    errors = [json.loads(line) for line in job.parts()["errors/part-00001.jsonl"].decode().splitlines()]
    assert [error["row"] for error in errors] == [70, 71], errors
    assert errors[1]["code"] == "invalid_argument" and "f64[3]" in errors[1]["error"], errors
    assert [line["id"] for line in job.lines()] == [f"row-{i}" for i in range(500) if i not in (70, 71)]
    job.look("verify")


def refusals():
    """Another model, other options and changed input are named, and nothing of the output changes."""
    job = Job(scratch / "refusals")
    job.run()
    whole = job.parts()
    _, err = job.run("--chunk-rows", "51", code=2)
    assert "chunk_rows: 50 then, 51 now" in err, err
    _, err = job.run("--precision", "bf16", code=2)
    assert "another model" in err and "bf16" in err, err
    shutil.copy(job.model, job.directory / "keep.onnx")
    make_model(job.model, factor=0.75)
    _, err = job.run(code=2)
    assert "another model" in err, err
    shutil.copy(job.directory / "keep.onnx", job.model)
    saved = (job.directory / "in1.jsonl").read_bytes()
    write_rows(job.directory / "in1.jsonl", 301, 200)
    _, err = job.run(code=2)
    assert "in1.jsonl' has changed" in err, err
    (job.directory / "in1.jsonl").write_bytes(saved)
    job.run("--threads", "2", "--retries", "1", "--lease", "5s")
    assert job.parts() == whole


def damaged_state():
    """A damaged manifest or journal is refused with what to do; a torn record is cut."""
    job = Job(scratch / "damaged")
    job.run()
    whole = job.parts()
    journal, manifest = job.output / "_job/journal", job.output / "_job/manifest"
    bytes_ = journal.read_bytes()
    journal.write_bytes(bytes_[:-5])
    job.run()
    wrong = bytearray(bytes_)
    wrong[100] ^= 1
    journal.write_bytes(wrong)
    _, err = job.run(code=2)
    assert "is damaged at byte" in err and "truncate -s" in err, err
    at = int(err.split("truncate -s ")[1].split("`")[0])
    os.truncate(journal, at)
    job.run()
    assert job.parts() == whole
    job.look("verify")
    bytes_ = bytearray(manifest.read_bytes())
    bytes_[60] ^= 1
    manifest.write_bytes(bytes_)
    _, err = job.run(code=2)
    assert "damaged" in err, err


def seeing():
    """Progress, metrics, status with goals, and a trace that says what it should."""
    job = Job(scratch / "seeing", rows=(6000,), slow=100, chunk_rows=100, cost_per_hour=3.6, budget=100, deadline="10h")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = job.start("--metrics-port", port, "--trace", job.directory / "trace.json")
    job.wait_for(lambda: job.some_are_done(3), process)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert "trireme_batch_rows 6000" in text and "trireme_batch_model_busy" in text, text
    status = job.status()
    assert len(status["workers"]) == 1 and status["workers"][0]["chunks_held"] >= 1, status
    assert 0 <= status["least_left_s"] <= status["left_s"] <= status["most_left_s"], status
    assert 0 < status["cost"] <= status["cost_at_end"], status
    assert any("deadline" in goal for goal in status["goals"]) and any("enough" in goal for goal in status["goals"])
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "batch progress" in err and "batch goal" in err, err[-1500:]
    trace = json.loads((job.directory / "trace.json").read_text())
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("commit") == 60 and names.count("read") == 60, names[:10]
    report = (job.output / "_job/report.md").read_text()
    assert "of a million rows" in report and "Slowest:" in report, report


def spent_budget():
    """A job that has cost its budget ends with 1, and its chunks are kept."""
    job = Job(scratch / "budget", rows=(20000,), slow=100, chunk_rows=50, cost_per_hour=3600, budget=12)
    # What is kept back for the grace is far more than a worker takes to leave on a busy machine.
    _, err = job.run("--grace", "6s", code=1)
    assert "cannot be met" in err and "budget is spent" in err, err[-1500:]
    status = job.status()
    assert status["chunks_done"] > 0 and 2 < status["cost"] <= 12, status
    # A job that is done costs nothing more: starting it again succeeds whatever the budget.
    done = Job(scratch / "budget_done", cost_per_hour=3600, budget=1000)
    done.run()
    out, _ = done.run("--budget", "0.001")
    assert "10 of 10" in out, out


def wrong_words():
    """What is wrong in a job file is said with its line."""
    job = Job(scratch / "words")
    job.file.write_text("model: m.onnx\ninput:\n  filez: [a]\n")
    _, err = job.run(code=2)
    assert "job.yaml:3" in err and "input_files" in err, err
    job.file.write_text("model: m.onnx\ninput: {files: [a]}\noutput: {directory: 's3://bucket/x'}\n")
    process = job.start()
    _, err = process.communicate(timeout=60)
    assert process.returncode in (2, 4) and ("state: DIRECTORY" in err or "Arrow" in err), err
    job.file.write_text("model: m.onnx\n")
    _, err = job.run(code=2)
    assert "a job needs input" in err, err
    done = subprocess.run([TRIREME, "batch", "status", str(scratch)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr


try:
    run_cases([(case.__name__, case) for case in (
        answers, formats, kills, stopped_worker, helpers_come_and_go, preempted, early_signals, odd_rows,
        spot_notice, full_disk, bad_rows, refusals, damaged_state, seeing, spent_budget, wrong_words)])
finally:
    shutil.rmtree(scratch, ignore_errors=True)
