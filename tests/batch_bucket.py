# A batch job whose output is a bucket of a real server, S3 or GCS: killed workers, a server that is silent for a time.
# tier: all
# timeout: 280
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

from _batch import START_AGAIN, Job
from _gcs import Gcs
from _s3 import S3
from _serving import run_cases

scratch = Path(tempfile.mkdtemp(prefix="trireme-bucket-"))
FORM = {"rows": (4000,), "slow": 40, "chunk_rows": 100}


class BucketJob(Job):
    """The same job with its output in a bucket and its state beside."""

    def __init__(self, directory, server, **options):
        state = Path(directory) / "state"
        super().__init__(directory, state=str(state), **options)
        self.name = f"bucket/{self.directory.name}"
        self.file.write_text(self.file.read_text().replace(str(self.output), f"s3://{self.name}"))
        self.output, self.server = state, server  # where `status` and `verify` look
        os.environ.update(server.environment())

    def keys(self):
        """The objects of the output, without the empty one named like their directory: Arrow's S3 client makes it when it
        removes the only object there is (what a worker uploaded last before it was killed)."""
        listing = self.server.call("GET", f"bucket?list-type=2&prefix={self.directory.name}/").decode()
        return [key for key in sorted(re.findall(r"<Key>([^<]+)</Key>", listing)) if not key.endswith("/")]

    def parts(self):
        return {key.split("/", 1)[1]: self.server.call("GET", f"bucket/{key}") for key in self.keys()}

    def some_are_done(self, count=1):
        return len(self.keys()) >= count


def whole_parts():
    job = Job(scratch / "whole", **FORM)
    job.run()
    return job.parts()


def with_server(body):
    def case():
        server = S3()
        try:
            body(server)
        finally:
            server.end()
    case.__name__ = body.__name__
    return case


@with_server
def killed_workers(server):
    """Uploads of killed workers leave nothing, and the objects equal the files of a local job."""
    rng = random.Random(5)
    job = BucketJob(scratch / "killed", server, **FORM)
    kills = 0
    while True:
        process = job.start()
        if kills < 12:
            time.sleep(rng.uniform(0.05, 0.6))
            process.kill()
            kills += process.wait() == -signal.SIGKILL
        _, err = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, err[-1500:]
    assert kills > 3, kills
    assert job.parts() == whole_parts()
    job.look("verify")


@with_server
def a_server_that_does_not_answer(server):
    """A worker waits for a store that is lost for a while; with no patience it ends with 75 and says why."""
    whole = whole_parts()
    job = BucketJob(scratch / "silent", server, **FORM)
    process = job.start()
    job.wait_for(lambda: job.some_are_done(2), process)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    server.process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-1500:]
    assert job.parts() == whole
    job = BucketJob(scratch / "gone", server, **FORM)
    process = job.start("--patience", "1s")
    job.wait_for(lambda: job.some_are_done(2), process)
    server.process.send_signal(signal.SIGSTOP)
    _, err = process.communicate(timeout=200)
    server.process.send_signal(signal.SIGCONT)
    assert process.returncode == START_AGAIN and "gave_up" in err, (process.returncode, err[-1500:])
    job.run()
    assert job.parts() == whole
    job.look("verify")


def google():
    """Input from gs:// with directories that give columns, output to gs://, by workers that are killed."""
    server = Gcs()
    try:
        os.environ.update(server.environment())
        job = Job(scratch / "google", state=str(scratch / "google/state"), **FORM)
        lines = (job.directory / "in0.jsonl").read_bytes().splitlines(keepends=True)
        for kind in range(2):
            server.put(f"in/kind={kind}/x.jsonl", b"".join(lines[kind * 500:kind * 500 + 500]))
        text = job.file.read_text().replace(f"{job.directory}/in*.jsonl", "gs://bucket/in/**/*.jsonl?anonymous=true")
        text = text.replace('"keep": ["id"]', '"keep": ["id", "kind"]')
        job.file.write_text(text.replace(str(job.output), "gs://bucket/out?anonymous=true"))
        job.output = job.directory / "state"  # where `status` and `verify` look
        for _ in range(3):
            process = job.start()
            time.sleep(0.7)
            process.kill()
            process.wait()
        job.run()
        parts = server.names("out/")
        assert parts == [f"out/part-{i:05}.jsonl" for i in range(10)], parts
        rows = [json.loads(line) for part in parts for line in server.get(part).splitlines()]
        assert [(row["id"], row["kind"]) for row in rows] == [(f"row-{i}", i // 500) for i in range(1000)]
        job.look("verify")
    finally:
        server.end()


def google_upload_that_is_given_up():
    """A worker that stops in the middle of a chunk leaves no part of it in gs://, though its upload has begun."""
    server = Gcs()
    try:
        os.environ.update(server.environment())
        # Pieces of 10 rows: the upload is open long before the chunk ends.
        job = Job(scratch / "given_up", rows=(4000,), slow=80, chunk_rows=2000, window_rows=40,
                  state=str(scratch / "given_up/state"))
        job.file.write_text(job.file.read_text().replace(str(job.output), "gs://bucket/given_up?anonymous=true"))
        job.output = job.directory / "state"  # where `status` and `verify` look
        for _ in range(2):
            process = job.start("--grace", "0s")
            job.wait_for(lambda: any((job.output / "workers").glob("*")), process)
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            assert process.returncode == START_AGAIN, (process.returncode, err[-1500:])
            sizes = [len(server.get(part).splitlines()) for part in server.names("given_up/")]
            assert all(size == 2000 for size in sizes), sizes
        job.run()
        assert server.names("given_up/") == [f"given_up/part-{i:05}.jsonl" for i in range(2)]
        job.look("verify")
    finally:
        server.end()


try:
    run_cases([(case.__name__, case) for case in (killed_workers, a_server_that_does_not_answer, google,
                                                  google_upload_that_is_given_up)])
finally:
    shutil.rmtree(scratch, ignore_errors=True)
