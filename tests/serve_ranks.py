# Models that several ranks hold are served with the answers of one rank.
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
from onnx import TensorProto, helper

from _serving import TRIREME, Server, Skip, run_cases, save, temporary, value

repository = temporary()
random = np.random.default_rng(3)


def add_mlp(name, layers=4, width=48, hidden=96):
    """Residual pairs of products [batch, width]: each pair is one that ranks split, each sum one that stages cut."""
    nodes, weights, x = [], [], "x"
    for i in range(layers):
        for kind, shape in (("up", (width, hidden)), ("down", (hidden, width))):
            data = (0.2 * random.standard_normal(shape)).astype(np.float32)
            weights.append(onnx.numpy_helper.from_array(data, f"{i}.{kind}"))
        nodes += [helper.make_node("MatMul", [x, f"{i}.up"], [f"u{i}"]), helper.make_node("Tanh", [f"u{i}"], [f"t{i}"]),
                  helper.make_node("MatMul", [f"t{i}", f"{i}.down"], [f"d{i}"]),
                  helper.make_node("Add", [x, f"d{i}"], [f"x{i}"])]
        x = f"x{i}"
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    save(nodes, [value("x", TensorProto.FLOAT, ["batch", width])], [value("y", TensorProto.FLOAT, ["batch", width])],
         repository / name / "1" / "model.onnx", weights)


add_mlp("mlp")
STRATEGY = temporary() / "strategy.yaml"
STRATEGY.write_text("dp: 4\nzero: 3\ntp: 2\npp: 2\n")


def infer(server, x):
    return infer_at(server.url, x)


def infer_at(url, x):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}
    request = urllib.request.Request(url + "/v2/models/mlp/infer", json.dumps(body).encode())
    answer = json.loads(urllib.request.urlopen(request, timeout=30).read())["outputs"][0]
    return np.array(answer["data"], np.float32).reshape(answer["shape"])


def answers_of(*options):
    inputs = [np.random.default_rng(i).standard_normal((1 + i % 3, 48)).astype(np.float32) for i in range(24)]
    with Server(repository, "--threads", "2", *options) as server:
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda x: infer(server, x), inputs))
        assert server.stop() == 0
    return answers


ALONE = answers_of()


def same(*options):
    for got, want in zip(answers_of(*options), ALONE):
        assert got.shape == want.shape
        assert np.abs(got - want).max() < 1e-4 * np.abs(want).max(), np.abs(got - want).max()


def wrong_input():
    """A request that does not fit is its client's error alone."""
    with Server(repository, "--threads", "2", "--tp", "2") as server:
        good = np.ones((1, 48), np.float32)
        want = infer(server, good)
        try:
            infer(server, np.ones((1, 47), np.float32))
            assert False, "answered"
        except urllib.error.HTTPError as e:
            assert e.code == 400, e.code
        assert (infer(server, good) == want).all()


class Job:
    """`trireme launch` of a server whose model lies in two processes."""

    def __init__(self):
        if shutil.which("mpirun") is None:
            raise Skip("mpirun is not installed")
        self.log, self.port = [], None
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1")
        self.process = subprocess.Popen(
            [TRIREME, "launch", "-n", "2", "--kind", "mpi", "--", TRIREME, "serve", "--model-repository",
             str(repository), "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "-1", "--threads", "1",
             "--tp", "2"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(r"serve ready .*port=(\d+)", line)
            if match:
                self.port = int(match[1])

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self):
        end = time.monotonic() + 60
        while self.port is None:
            assert time.monotonic() < end and self.process.poll() is None, "".join(self.log)
            time.sleep(0.02)

    def ranks(self):
        """Processes of the job that serve or follow, in order of their numbers."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                words = open(f"/proc/{entry}/environ", "rb").read().split(b"\0") if entry.isdigit() else []
                command = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0") if words else []
            except OSError:
                continue
            rank = [w for w in words if w.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if rank and str(repository).encode() in command and b"serve" in command[:2]:
                found.append((int(rank[0].split(b"=")[1]), int(entry)))
        return [pid for _, pid in sorted(found)]


def processes_of_a_job():
    """A killed follower fails requests with 503; the job starts again and answers as before."""
    job = Job()
    try:
        job.wait_ready()
        x = np.random.default_rng(1).standard_normal((2, 48)).astype(np.float32)
        want = infer(job, x)
        assert np.abs(want - ALONE[1]).max() < 1e-4 * np.abs(want).max()
        first, follower = job.ranks()
        port, job.port = job.port, None
        os.kill(follower, signal.SIGKILL)
        codes = []
        while job.port is None and len(codes) < 10000:
            try:
                infer_at(f"http://127.0.0.1:{port}", x)
            except urllib.error.HTTPError as e:
                codes.append(e.code)
            except OSError:
                time.sleep(0.02)
        job.wait_ready()
        assert not codes or set(codes) == {503}, codes
        assert (infer(job, x) == want).all()
        assert first not in job.ranks()
    finally:
        job.process.send_signal(signal.SIGTERM)
        code = job.process.wait(60)
    assert code == 0, (code, "".join(job.log))


def run_in_a_job():
    """`trireme run` as four processes writes what one rank writes."""
    if shutil.which("mpirun") is None:
        raise Skip("mpirun is not installed")
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    outputs = []
    for launcher, ranks in (([], []), (["mpirun", "--oversubscribe", "-n", "4"], ["--tp", "2", "--pp", "2"])):
        directory = temporary()
        subprocess.run([*launcher, TRIREME, "run", str(repository / "mlp" / "1" / "model.onnx"), "--batch", "3",
                        "--threads", "1", "--output", str(directory), *ranks],
                       check=True, env=environment, capture_output=True, timeout=120)
        outputs.append(np.load(directory / "y.npy"))
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-4 * np.abs(outputs[0]).max()


run_cases([("tensor parallel", lambda: same("--tp", "2")), ("stages", lambda: same("--pp", "2")),
           ("stages of tensor-parallel ranks", lambda: same("--tp", "2", "--pp", "2")),
           ("two instances of two ranks", lambda: same("--tp", "2", "--instances", "2")),
           ("the strategy of a training", lambda: same("--strategy", str(STRATEGY))), ("wrong input", wrong_input),
           ("processes of a job", processes_of_a_job), ("run in a job", run_in_a_job)])
