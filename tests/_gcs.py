# A server of Google Cloud Storage's API as a process, for the journeys that read and write gs:// buckets.
# `./dev test --all` installs it beside the server of S3; without it the cases that need it are skipped.
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from _s3 import HOME
from _serving import Skip

SERVER = """
import sys
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="bucket").run()
"""


class Gcs:
    """gcp-storage-emulator; objects go in and out by plain HTTP, not by the library that is tested."""

    def __init__(self):
        if not (HOME / "gcp_storage_emulator").is_dir():
            raise Skip("no server of Google Cloud Storage is installed (./dev test --all installs it)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, str(self.port)],
                                        env=dict(os.environ, PYTHONPATH=str(HOME)), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while True:
            try:
                self.names()
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "the server of GCS does not start"
                time.sleep(0.1)

    def call(self, method, path, content=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", data=content, method=method,
                                         headers={"Content-Type": "application/octet-stream"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def put(self, name, content):
        self.call("POST", f"upload/storage/v1/b/bucket/o?uploadType=media&name={urllib.parse.quote(name, safe='')}",
                  content)

    def get(self, name):
        return self.call("GET", f"storage/v1/b/bucket/o/{urllib.parse.quote(name, safe='')}?alt=media")

    def names(self, prefix=""):
        try:
            listing = json.loads(self.call("GET", f"storage/v1/b/bucket/o?prefix={urllib.parse.quote(prefix)}"))
        except urllib.error.HTTPError as refusal:
            raise OSError(refusal.code) from refusal
        return sorted(item["name"] for item in listing.get("items", ()))

    def environment(self):
        return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}"}

    def end(self):
        self.process.kill()
        self.process.wait()
