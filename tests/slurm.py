# Ranks under a real Slurm of one machine: the conformance suite by srun, a training run that loses a rank, tasks that
# Slurm cannot launch, and a batch job that is stopped, waits in the queue and goes on.
# tier: slurm
# timeout: 240
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _ranks
import _slurm
from _training import TRIREME, make_patterns, read_log

CONFIG = """
run: {{name: run, directory: {directory}, steps: {steps}, seed: 11}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [48, 32], classes: 4}}}}
data: {{path: {data}, hold_out: 0.1}}
batch: {{global: 32, micro: 4}}
optimizer: {{kind: adamw}}
schedule: {{lr: 0.003}}
checkpoint: {{every: 200, keep: 2}}
log: {{progress: 0s}}
"""


def conformance(slurm, ranks):
    code, output = slurm.run(["srun", "-n", ranks, "--overcommit", "--mpi=pmix", _ranks.TEST_COMM,
                              "--gtest_filter=Mpi/*", "--gtest_color=no"])
    good, bad = _ranks.conformance(ranks, code, output)
    print(f"{ranks} ranks by srun: {good} cases passed, {bad} failed")
    if bad:
        print(output[-6000:])
    return good, bad


def trainers(config):
    """Processes of this run under Slurm's step daemon, by their words."""
    program = str(Path(TRIREME).resolve()).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [program, b"train"] and str(config).encode() in words:
            found.append(int(entry.name))
    return found


def launched_run_loses_a_rank(slurm, room):
    """Empty if the run went on after a kill and ended, else what was wrong."""
    make_patterns(room / "data")
    config, directory = room / "run.yaml", room / "run"
    config.write_text(CONFIG.format(directory=directory, data=room / "data", steps=20_000))
    process = subprocess.Popen([TRIREME, "launch", "-n", "2", "--kind", "slurm", "--", "trireme", "train", str(config),
                                "--quiet"], env=slurm.environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (directory / "checkpoints/latest").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    running = trainers(config)
    if running:
        os.kill(running[-1], signal.SIGKILL)
    try:
        _, err = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.terminate()
        _, err = process.communicate()
    good = process.returncode == 0 and err.count("launch restart") == 1 and "running_again lost=" in err
    return "" if good and len(running) == 2 else f"exit {process.returncode}, ranks {running}:\n{err[-4000:]}"


def tasks_that_cannot_launch_are_an_error(slurm, room):
    """Empty if a step that Slurm cannot launch, for which srun ends with 0, is started again and then an error."""
    ids = [int(word) for word in re.findall(r"JobId=(\d+)", slurm.run(["scontrol", "show", "jobs"])[1])]
    taken = [socket.socket(socket.AF_UNIX) for _ in range(3)]  # where Slurm's daemon of a step wants to listen
    for number, place in enumerate(taken):
        place.bind(str(slurm.room / f"spool/stepd.slurm.pmix.{max(ids) + 1 + number}.0"))
    code, output = slurm.run([TRIREME, "launch", "-n", "2", "--kind", "slurm", "--restarts", "1", "--", "true"])
    for place in taken:
        path = Path(place.getsockname())
        place.close()
        path.unlink(missing_ok=True)
    good = code == 1 and output.count("launch restart ended=\"exit 1\"") == 1 and "launch failed" in output
    return "" if good else f"exit {code}:\n{output[-2000:]}"


def state_of(slurm, job):
    """PENDING, RUNNING, COMPLETED … as scontrol says; with the count of restarts."""
    _, output = slurm.run(["scontrol", "show", "job", job])
    fields = dict(word.split("=", 1) for word in output.split() if "=" in word)
    return fields.get("JobState", "GONE"), int(fields.get("Restarts", "0"))


def has_steps(job):
    """Slurm's daemons of the job's steps still run."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                return True
        except OSError:
            pass
    return False


def until(limit_s, ready):
    end = time.monotonic() + limit_s
    while not ready() and time.monotonic() < end:
        time.sleep(0.05)
    return ready()


def batch_job_is_requeued(slurm, room):
    """deploy/train.sbatch: empty if the job was stopped, saved, queued again and ended; else what was wrong."""
    room = room / "batch"
    room.mkdir()
    make_patterns(room / "data")
    config, directory, log = room / "run.yaml", room / "run", room / "job.log"
    config.write_text(CONFIG.format(directory=directory, data=room / "data", steps=10_000_000))  # until it is stopped
    script = Path(__file__).resolve().parent.parent / "deploy/train.sbatch"
    code, output = slurm.run(["sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--overcommit",
                              f"--export=ALL,TRIREME={Path(TRIREME).resolve()}", f"--output={log}", script, config])
    if code:
        return f"sbatch: {output}"
    job = output.split()[-1]
    if not until(60, (directory / "checkpoints/latest").exists):
        return f"no checkpoint: {state_of(slurm, job)}\n{log.read_text() if log.exists() else ''}"
    slurm.run(["scancel", "--batch", "--signal=USR1", job])
    if not until(60, lambda: state_of(slurm, job)[1] == 1):
        return f"not queued again: {state_of(slurm, job)}\n{log.read_text()[-1200:]}"
    until(20, lambda: state_of(slurm, job)[0] == "PENDING")
    until(20, lambda: not has_steps(job))  # a job that begins again before that is killed with them
    last = read_log(directory)["step"][-1]["step"] + 2000
    config.write_text(CONFIG.format(directory=directory, data=room / "data", steps=last))
    slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])  # Slurm would wait for two minutes
    if not until(90, lambda: state_of(slurm, job)[0] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")):
        return f"does not end: {state_of(slurm, job)}\n{log.read_text()[-1200:]}"
    state, _ = state_of(slurm, job)
    steps = [event["step"] for event in read_log(directory).get("step", [])]
    good = state == "COMPLETED" and steps and steps[-1] == last
    return "" if good else f"{state}, last step {steps[-1:]}:\n{log.read_text()[-1500:]}"


def run_all(room):
    """Totals (passed, failed)."""
    passed = failed = 0
    with _slurm.Slurm(room / "slurm") as slurm:
        for ranks in (2, 4):
            good, bad = conformance(slurm, ranks)
            passed += good
            failed += bad
        for case in (launched_run_loses_a_rank, tasks_that_cannot_launch_are_an_error, batch_job_is_requeued):
            wrong = case(slurm, room)
            passed += not wrong
            failed += bool(wrong)
            if wrong:
                print(f"FAILED {case.__name__}: {wrong}")
        if failed:
            print(slurm.logs())
    return passed, failed


def main():
    reason = _slurm.why_not() or _ranks.why_no_mpi()
    passed = failed = 0
    if not reason:
        try:
            with tempfile.TemporaryDirectory(prefix="slurm") as room:
                passed, failed = run_all(Path(room))
        except _slurm.NotHere as words:
            print(words)
            reason = "Slurm does not start on this machine"
    if reason:
        print(f"skipped: {reason}")
    print(f"{passed} passed, {failed} failed, {int(bool(reason))} skipped")
    sys.exit(1 if failed else 0)


main()
