# A real server of S3 as a process, for the journeys that read and write buckets.
# `./dev test --all` installs it below .venv; without it the cases that need it are skipped.
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from _serving import ROOT, Skip

HOME = Path(os.environ.get("TRIREME_STORES", ROOT / ".venv" / "stores"))


class S3:
    """moto's server; objects go in and out by plain HTTP, not by the library that is tested."""

    def __init__(self):
        if not (HOME / "moto").is_dir():
            raise Skip("no server of S3 is installed (./dev test --all installs it)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                                        env=dict(os.environ, PYTHONPATH=str(HOME)), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while True:
            try:
                self.call("PUT", "bucket")
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "the server of S3 does not start"
                time.sleep(0.1)

    def call(self, method, key, content=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{key}", data=content, method=method,
                                         headers={"Content-Type": "application/octet-stream"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def environment(self, port=None):
        return {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}"}

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
