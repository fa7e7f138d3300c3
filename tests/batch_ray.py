# deploy/ray_batch.py on a real Ray of this machine: its actors are workers of one job, one of them is killed, and the
# output equals that of one undisturbed worker.
# tier: oracles
# timeout: 200
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from _batch import Job
from _serving import TRIREME, Skip, run_cases

SCRIPT = Path(__file__).resolve().parent.parent / "deploy/ray_batch.py"
FORM = {"rows": (3000,), "slow": 60, "chunk_rows": 50}


def workers_of(job):
    """Processes of the job's workers."""
    return [int(worker["process"].split(":")[1]) for worker in job.status()["workers"]]


def actors_share_a_job():
    if importlib.util.find_spec("ray") is None:
        raise Skip("Ray is not installed (tools/requirements-oracles.txt)")
    with tempfile.TemporaryDirectory(prefix="trireme-ray-") as room:
        whole = Job(Path(room) / "whole", **FORM)
        whole.run()
        job = Job(Path(room) / "ray", **FORM)
        environment = dict(os.environ, TRIREME=TRIREME, RAY_USAGE_STATS_ENABLED="0")
        process = subprocess.Popen([sys.executable, SCRIPT, "--workers", "2", "--cpus", "0.5", job.file],
                                   env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        job.wait_for(lambda: job.some_are_done(3) and len(workers_of(job)) == 2, process, limit_s=90)
        os.kill(workers_of(job)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=150)
        assert process.returncode == 0, output[-2000:]
        assert job.parts() == whole.parts()
        job.look("verify")
        assert sum(worker["chunks_done"] for worker in job.status()["workers"]) == 0, "workers outlive the job"


run_cases([("actors_share_a_job", actors_share_a_job)])
