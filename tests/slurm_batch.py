# A batch job as an array under a real Slurm of one machine: workers share it, one is stopped, waits in the queue and
# comes back, one is killed; the output equals that of one undisturbed worker.
# tier: slurm
# timeout: 240
import sys
import tempfile
import time
from pathlib import Path

import _slurm
from _batch import Job
from _serving import TRIREME

SCRIPT = Path(__file__).resolve().parent.parent / "deploy/batch.sbatch"
FORM = {"rows": (4000,), "slow": 60, "chunk_rows": 100, "lease": "5s"}


def until(limit_s, ready):
    end = time.monotonic() + limit_s
    while not ready() and time.monotonic() < end:
        time.sleep(0.05)
    return ready()


def restarts(slurm, task):
    _, output = slurm.run(["scontrol", "show", "job", task])
    fields = dict(word.split("=", 1) for word in output.split() if "=" in word)
    return int(fields.get("Restarts", "0")), fields.get("JobState", "GONE")


def array_of_workers(slurm, room):
    """Empty, or what was wrong."""
    whole = Job(room / "whole", **FORM)
    whole.run()
    job = Job(room / "array", **FORM)
    logs = room / "log-%a"
    code, output = slurm.run(["sbatch", "--parsable", "--array=0-1", "--oversubscribe", "--mem=0",
                              f"--export=ALL,TRIREME={Path(TRIREME).resolve()}", f"--output={logs}", SCRIPT, job.file])
    if code:
        return f"sbatch: {output}"
    array = output.split()[-1]

    def said():
        return "".join(path.read_text(errors="replace")[-1500:] for path in room.glob("log-*"))

    if not until(60, lambda: job.some_are_done(2) and len(job.status()["workers"]) == 2):
        return f"two workers never shared the job: {slurm.run(['squeue'])[1]} {said()}"
    slurm.run(["scancel", "--batch", "--signal=TERM", f"{array}_0"])
    if not until(60, lambda: restarts(slurm, f"{array}_0")[0] == 1):
        return f"not queued again: {restarts(slurm, f'{array}_0')} {said()}"
    slurm.run(["scancel", "--batch", "--signal=KILL", f"{array}_1"])
    until(20, lambda: restarts(slurm, f"{array}_0")[1] == "PENDING")
    time.sleep(2)  # a job that begins again before its old step has ended is killed with it
    slurm.run(["scontrol", "update", f"JobId={array}_0", "StartTime=now"])  # Slurm would wait for two minutes
    if not until(90, lambda: job.status()["chunks_done"] == 40):
        return f"the job did not end: {job.status()} {slurm.run(['squeue'])[1]} {said()}"
    until(20, lambda: not job.status()["workers"])
    if job.parts() != whole.parts():
        return "the output differs from that of one worker"
    job.look("verify")
    return ""


def main():
    reason = _slurm.why_not()
    if reason:
        print(f"skip: {reason}\n0 passed, 0 failed, 1 skipped")
        return
    with tempfile.TemporaryDirectory(prefix="trireme-slurm-batch-") as room:
        room = Path(room)
        room.chmod(0o755)
        try:
            with _slurm.Slurm(room / "slurm") as slurm:
                wrong = array_of_workers(slurm, room)
        except _slurm.NotHere as why:
            print(f"skip: {why}\n0 passed, 0 failed, 1 skipped")
            return
    if wrong:
        print(f"FAILED array_of_workers: {wrong}")
    print(f"{0 if wrong else 1} passed, {1 if wrong else 0} failed, 0 skipped")
    sys.exit(1 if wrong else 0)


main()
