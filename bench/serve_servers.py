"""Servers of ./dev bench serve: Trireme and its peers as processes on given cores, all with the same model files."""
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PYTRITON = "nvidia-pytriton==0.7.0"
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def peers_folder():
    """A virtual environment and an unpacked Triton outside the repository, made when first needed."""
    wanted = HERE.parent / "tools/requirements-serving-peers.txt"
    key = hashlib.sha256(wanted.read_bytes() + PYTRITON.encode()).hexdigest()[:12]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    folder = cache / "trireme" / f"serving-peers-{key}"
    if (folder / "ready").exists():
        return folder
    print(f"installing the peers in {folder} (once, some minutes)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([*pip, "install", "-r", wanted], check=True)
    subprocess.run([*pip, "download", "--no-deps", "-d", folder / "wheels", PYTRITON], check=True)
    for wheel in (folder / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "triton")
    shutil.rmtree(folder / "wheels")
    triton = folder / "triton/pytriton/tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / python / "triton_python_backend_stub"
    shutil.copy(stub, triton / "backends/python")
    for program in (triton / "bin/tritonserver", triton / "backends/python/triton_python_backend_stub"):
        program.chmod(0o755)
    (triton / "backends/nothing").mkdir()
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", "-o", triton / "backends/nothing/libtriton_nothing.so",
                    HERE / "serve_triton_backend.cc"], check=True)
    (folder / "ready").touch()
    return folder


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Server:
    """A running server. `takes` are the forms it understands; CPU time is that of all its processes. A wide peer has one
    worker or instance with a thread for each core, others one of each with a thread."""

    name, takes = "", ("binary", "json", "grpc")

    def __init__(self, models, cpus, scratch, peers, is_wide=False):
        self.peer, self.is_wide = self.name, is_wide
        self.workers, self.threads = (1, len(cpus)) if is_wide else (len(cpus), 1)
        if is_wide:
            self.name += ":wide"
        self.models, self.cpus, self.folder, self.peers = models, cpus, scratch / self.name, peers
        self.folder.mkdir(parents=True)
        self.http, self.grpc, self.extra = free_ports(3)
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(self.threads), SERVE_THREADS=str(self.threads))
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in self.command()], stdout=log, stderr=log, env=self.environment,
                cwd=self.folder, start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, cpus))

    def command(self):
        raise NotImplementedError

    def wait_ready(self, seconds=120):
        end = time.monotonic() + seconds
        for model in self.models.values():
            while not self.is_ready(model):
                if self.process.poll() is not None or time.monotonic() > end:
                    tail = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{self.name} does not serve {model.name}:\n{tail}")
                time.sleep(0.1)

    def is_ready(self, model):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)
            connection.request("GET", f"/v2/models/{model.name}/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def version(self):
        """What the server says of itself; None where it does not."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)
        connection.request("GET", "/v2")
        response = connection.getresponse()
        body = response.read()
        return json.loads(body).get("version") if response.status == 200 else None

    def cpu_us(self):
        """User and system time so far, in microseconds, of every process of the server."""
        user = kernel = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == self.process.pid:  # the session
                user, kernel = user + int(words[11]), kernel + int(words[12])
        return user * TICK_US, kernel * TICK_US

    def rest(self, on):
        """Stops all of its processes, or lets them go on."""
        os.killpg(self.process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def close(self):
        self.rest(False)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # workers that outlive their parent
        except ProcessLookupError:
            pass
        self.process.wait()


class Trireme(Server):
    name = "trireme"

    def command(self):
        for model in self.models.values():
            place = self.folder / "models" / model.name / "1"
            place.mkdir(parents=True)
            (place / "model.onnx").symlink_to(model.path)
        return [os.environ["TRIREME"], "serve", "--model-repository", self.folder / "models", "--http-port", self.http,
                "--grpc-port", self.grpc, "--host", "127.0.0.1"]


class TriremePerCore(Trireme):
    """An instance for each core, as the peers run: no request waits for one that the other core computes."""

    name = "trireme_per_core"

    def command(self):
        return super().command() + ["--instances", len(self.cpus), "--threads", 1]


class TriremePolling(Trireme):
    """Cores that idle do not halt: on a virtual machine those that wake may find another one on their place."""

    name = "trireme_polling"

    def command(self):
        return super().command() + ["--halt-poll", "20ms"]


class TriremePerCorePolling(TriremePerCore):
    name = "trireme_per_core_polling"

    def command(self):
        return super().command() + ["--halt-poll", "20ms"]


class Triton(Server):
    name = "triton"

    def config(self, model):
        """Models that compute batch dynamically: what is queued when an instance gets free goes together."""
        batch = [] if model.computes else [-1]
        tensors = "".join(
            f'input [{{name: "{name}", data_type: TYPE_{kind}, dims: {batch + list(shape[1:])}}}]\n'
            for name, kind, shape, _ in model.tensors())
        engine = "python" if model.computes else "nothing"
        batching = "max_batch_size: 16\ndynamic_batching { }\n" if model.computes else "max_batch_size: 0\n"
        return (f'backend: "{engine}"\n{batching}{tensors}'
                f'output [{{name: "{model.output}", data_type: TYPE_FP32, dims: {batch + list(model.output_shape)}}}]\n'
                f'instance_group [{{kind: KIND_CPU, count: {self.workers}}}]\n'
                f'parameters {{key: "file", value: {{string_value: "{model.path}"}}}}\n')

    def command(self):
        triton = self.peers / "triton/pytriton/tritonserver"
        for model in self.models.values():
            place = self.folder / "models" / model.name / "1"
            place.mkdir(parents=True)
            (place.parent / "config.pbtxt").write_text(self.config(model))
            if model.computes:
                shutil.copy(HERE / "serve_triton_model.py", place / "model.py")
        self.environment["LD_LIBRARY_PATH"] = str(self.peers / "triton/nvidia_pytriton.libs")
        # its Python looks for packages beside the first python on the path, and nowhere else
        self.environment["PATH"] = f"{self.peers / 'venv/bin'}:{os.environ['PATH']}"
        return [triton / "bin/tritonserver", "--model-repository", self.folder / "models", "--backend-directory",
                triton / "backends", "--http-port", self.http, "--grpc-port", self.grpc, "--metrics-port", self.extra,
                "--http-thread-count", max(2, len(self.cpus)), "--log-warning", "false"]


class Mlserver(Server):
    name, takes = "mlserver", ("json", "grpc")

    def command(self):
        settings = {"host": "127.0.0.1", "http_port": self.http, "grpc_port": self.grpc, "metrics_port": self.extra,
                    "parallel_workers": self.workers, "debug": False, "environments_dir": str(self.folder / "envs")}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        for model in self.models.values():
            (self.folder / model.name).mkdir()
            one = {"name": model.name, "implementation": "serve_mlserver.OnnxModel",
                   "parameters": {"uri": str(model.path), "version": "1"}}
            (self.folder / model.name / "model-settings.json").write_text(json.dumps(one))
        self.environment["PYTHONPATH"] = str(HERE)
        return [self.peers / "venv/bin/mlserver", "start", self.folder]


class FastApi(Server):
    takes = ("binary", "json")
    engine = ""

    def command(self):
        files = {model.name: str(model.path) for model in self.models.values()}
        (self.folder / "models.json").write_text(json.dumps(files))
        self.environment |= {"SERVE_MODELS": str(self.folder / "models.json"), "SERVE_ENGINE": self.engine,
                             "PYTHONPATH": str(HERE)}
        return [self.peers / "venv/bin/uvicorn", "serve_fastapi:app", "--host", "127.0.0.1", "--port", self.http,
                "--workers", self.workers, "--loop", "uvloop", "--http", "httptools", "--no-access-log",
                "--log-level", "warning"]


class OnnxRuntimeFastApi(FastApi):
    name, engine = "onnxruntime_fastapi", "onnxruntime"


class OpenVinoFastApi(FastApi):
    name, engine = "openvino_fastapi", "openvino"


PEERS = {c.name: c for c in (Triton, Mlserver, OnnxRuntimeFastApi, OpenVinoFastApi)}
