# Several workers of one batch job on one machine: as many as the deadline needs, within the budget, and as MPI ranks.
# timeout: 200
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import _ranks
from _batch import START_AGAIN, Job
from _serving import TRIREME, Skip, run_cases

scratch = Path(tempfile.mkdtemp(prefix="trireme-workers-"))
FORM = {"rows": (3000,), "slow": 40, "chunk_rows": 50, "lease": "2s"}


def workers_of(process):
    """The processes that it started."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
    return [int(word) for word in listed.split()]


def in_report(job):
    """How many workers the report names."""
    return int(re.search(r"- workers: (\d+);", (job.output / "_job/report.md").read_text(encoding="utf-8"))[1])


_whole = []


def whole_parts():
    if not _whole:
        job = Job(scratch / "whole", **FORM)
        job.run()
        _whole.append(job.parts())
    return _whole[0]


def share_a_machine():
    """`workers: 2` is two processes with half of the cores each; one that is killed is started again."""
    job = Job(scratch / "share", workers=2, **FORM)
    process = job.start()
    job.wait_for(lambda: len(workers_of(process)) == 2 and job.some_are_done(3), process)
    first = workers_of(process)
    words = Path(f"/proc/{first[0]}/cmdline").read_bytes().split(b"\0")
    assert b"--workers" in words and words[words.index(b"--workers") + 1] == b"1", words
    subprocess.run(["kill", "-9", str(first[0])], check=True)
    job.wait_for(lambda: len(workers_of(process)) == 2 and workers_of(process) != first, process)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-1500:]
    assert "worker_killed" in err and out.count("chunks   60 of 60") == 1, (out, err[-1500:])
    assert job.parts() == whole_parts()
    assert in_report(job) == 3
    job.look("verify")


def stop_together():
    """A signal stops all of them with 75, none stays, and the next start goes on."""
    job = Job(scratch / "stop", workers=2, **FORM)
    process = job.start("--grace", "0s")
    job.wait_for(lambda: len(workers_of(process)) == 2 and job.some_are_done(3), process)
    workers = workers_of(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == START_AGAIN, (process.returncode, err[-1500:])
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert job.status()["workers"] == [] and job.status()["chunks_done"] < 60
    done = subprocess.run([TRIREME, "batch", "resume", str(job.output), "--workers", "2"], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert job.parts() == whole_parts()


def wrong_input_ends_all():
    """What a worker refuses ends the others and is the exit code."""
    job = Job(scratch / "wrong", workers=2, **FORM)
    job.file.write_text(job.file.read_text().replace('"keep": ["id"]', '"keep": ["nowhere"]'))
    _, err = job.run(code=2)
    assert "no column 'nowhere'" in err, err[-1500:]


def deadline_adds_workers():
    """One worker begins, and the second comes once the first chunks say that one is too slow."""
    form = dict(FORM, rows=(8000,))
    job = Job(scratch / "deadline", workers=2, deadline="3s", **form)
    _, err = job.run()
    assert "more_workers from=1 to=2" in err, err[-1500:]
    assert re.search(r"The deadline.*(sbatch --array=0-\d+ |cannot be met)|deadline has passed", err), err[-1500:]
    assert in_report(job) == 2
    assert "Deadline: 3.0 s; the job took" in (job.output / "_job/report.md").read_text(encoding="utf-8")
    easy = Job(scratch / "easy", workers=2, deadline="10h", **FORM)
    _, err = easy.run()
    assert "more_workers" not in err and in_report(easy) == 1, err[-1500:]
    assert easy.parts() == whole_parts()


def budget_is_never_passed():
    """Two workers stop while what they have in hand still fits; a start with nothing to spend begins nothing."""
    form = dict(FORM, rows=(20000,), slow=100)
    job = Job(scratch / "budget", workers=2, cost_per_hour=3600, budget=22, grace="4s", **form)
    _, err = job.run(code=1)
    assert "budget is spent" in err, err[-1500:]
    status = job.status()
    assert 0 < status["chunks_done"] < 400 and 5 < status["cost"] <= 22, status
    job.run("--workers", "1", code=1)  # one alone need keep back less than two
    again = job.status()
    assert again["cost"] <= 22, again
    job.run("--workers", "1", code=1)
    assert job.status()["cost"] == again["cost"], job.status()


def ranks_of_mpi():
    """Processes that mpirun starts are workers of one job."""
    if reason := _ranks.why_no_mpi():
        raise Skip(reason)
    job = Job(scratch / "mpi", **FORM)
    code, output = _ranks.run(2, [TRIREME, "batch", job.file])
    assert code == 0, output[-1500:]
    assert in_report(job) == 2
    assert job.parts() == whole_parts()
    job.look("verify")


try:
    run_cases([(case.__name__, case) for case in (
        share_a_machine, stop_together, wrong_input_ends_all, deadline_adds_workers, budget_is_never_passed,
        ranks_of_mpi)])
finally:
    shutil.rmtree(scratch, ignore_errors=True)
