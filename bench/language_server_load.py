"""Servers of language models as ./dev bench language_server runs them, and the one client that loads them all.

llama.cpp's server is compiled for this machine from the source that the package llama-cpp-python of
tools/requirements-language.txt brings along: no package has the program. Nothing else of that tree is built.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request

from serve_servers import TICK_US, Server

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = ROOT / "out/bench/language_server"
NAME = "model"
NATIVE = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
          "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]


def packages():
    """The package and version that has the source, and those that write model files."""
    lines = (ROOT / "tools/requirements-language.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if "==" in line and not line.startswith("#")]
    peer = next(line for line in pinned if line.startswith("llama-cpp-python=="))
    return peer, [line for line in pinned if line != peer]


def writer_python():
    """An interpreter that writes GGUF files."""
    wanted, done = packages()[1], HOME / "writers.txt"
    python = HOME / "venv/bin/python"
    if not done.exists() or done.read_text(encoding="utf-8") != " ".join(wanted):
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *wanted], check=True)
        done.write_text(" ".join(wanted), encoding="utf-8")
    return python


def source_of(wanted, home):
    """llama.cpp's tree out of the source package."""
    download = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps",
                "--no-binary", wanted.split("=")[0], "-d", home / "package", wanted]
    subprocess.run(download, check=True)
    archive, = (home / "package").glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as tar:
        wanted_files = [m for m in tar.getmembers() if "/vendor/llama.cpp/" in m.name and m.isfile()]
        tar.extractall(home / "source", wanted_files, filter="data")
    tree, = (home / "source").glob("*/vendor/llama.cpp")
    return tree


def peer_program():
    """The path of llama-server; compiles it if need be (some minutes)."""
    wanted, done = packages()[0], HOME / "built.txt"
    program = HOME / "build/bin/llama-server"
    if done.exists() and done.read_text(encoding="utf-8") == wanted and program.exists():
        return program
    print("compiling llama.cpp's server (once, some minutes)", flush=True)
    for part in ("package", "source", "build"):
        shutil.rmtree(HOME / part, ignore_errors=True)
    HOME.mkdir(parents=True, exist_ok=True)
    tree = source_of(wanted, HOME)
    with open(HOME / "build.log", "wb") as log:
        for command in (["cmake", "-S", tree, "-B", HOME / "build", *NATIVE],
                        ["cmake", "--build", HOME / "build", "--target", "llama-server", "--parallel",
                         os.cpu_count()]):
            if subprocess.run([str(w) for w in command], stdout=log, stderr=log, check=False).returncode != 0:
                raise RuntimeError(f"llama.cpp's server cannot be compiled: {HOME / 'build.log'}")
    done.write_text(wanted, encoding="utf-8")
    return program


class TextServer(Server):
    """A server of one GGUF file on all cores of the benchmark. `setup`: file, threads, sequences, positions."""

    def __init__(self, setup, cpus, scratch):
        self.setup = setup
        self.begun = time.monotonic()
        super().__init__({NAME: setup["file"]}, cpus, scratch, None)

    def is_ready(self, _model):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def ready_ms(self, seconds=120):
        """From the start of the process until it answers that it is ready, looked at each two milliseconds."""
        end = self.begun + seconds
        while not self.is_ready(NAME):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.002)
        return 1e3 * (time.monotonic() - self.begun)

    def text(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=30) as answer:
            return answer.read().decode()


class Trireme(TextServer):
    name = "trireme"

    def command(self):
        place = self.folder / "models" / NAME
        place.mkdir(parents=True)
        (place / "model.gguf").symlink_to(self.setup["file"])
        return [os.environ["TRIREME"], "serve", "--model-repository", self.folder / "models", "--host", "127.0.0.1",
                "--http-port", self.http, "--grpc-port", "-1", "--threads", self.setup["threads"], "--cache-type",
                "f16", "--max-sequences", self.setup["sequences"], "--max-queue", 4096, "--request-timeout", "0s"]

    def front_us(self):
        """Microseconds so far that clients cost beside the model's steps: user and kernel time of the threads that
        read and write connections, and time between steps."""
        user = kernel = 0
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() != "http":
                continue
            words = (task / "stat").read_text().rpartition(")")[2].split()
            user, kernel = user + int(words[11]) * TICK_US, kernel + int(words[12]) * TICK_US
        told = [line for line in self.text("/metrics").splitlines() if line.startswith("trireme_text_told_us_total")]
        return user, kernel, float(told[0].rsplit(" ", 1)[1])


class LlamaCpp(TextServer):
    """As its own documents advise for many users of one model: a slot for each sequence with room of its own for a
    whole text, continuous batching (its default), flash attention, and slots that keep the prompts they had. What it
    saves of prompts in the host's memory beside the slots copies keys and values with every request, so that is a
    setting of its own. Its threads wait in a loop for work, as by default."""

    name, flags = "llama.cpp", ()

    def command(self):
        s = self.setup
        return [s["peer"], "--model", s["file"], "--alias", NAME, "--host", "127.0.0.1", "--port", self.http,
                "--threads", s["threads"], "--threads-batch", s["threads"], "--parallel", s["sequences"], "--ctx-size",
                s["sequences"] * s["positions"], "--no-webui", "--threads-http", s["sequences"] + 8, *self.flags]


class LlamaCppFlash(LlamaCpp):
    name, flags = "llama.cpp", ("--flash-attn", "on", "--cache-ram", 0)


class LlamaCppKeeping(LlamaCpp):
    name, flags = "llama.cpp, host cache", ("--flash-attn", "on")


class LlamaCppPlain(LlamaCpp):
    name, flags = "llama.cpp, no flash attention", ("--flash-attn", "off", "--cache-ram", 0)


PEERS = (LlamaCppFlash, LlamaCppKeeping, LlamaCppPlain)


def mixed_lengths(path, positions, seed=1, count=400):
    """A schedule as users of one assistant make it: short questions, some with a page of text, a few with a long one;
    answers that are mostly short and have a long tail. No prompt shares more than chance with another."""
    draw = random.Random(seed)
    lines = []
    for at in range(count):
        low, high = draw.choices([(16, 128), (128, 512), (512, 2000)], [5, 4, 1])[0]
        answer = min(256, max(4, round(draw.lognormvariate(3.6, 0.8))))
        prompt = min(draw.randint(low, high), positions - answer - 1)
        lines.append(json.dumps({"timestamp": at, "input_length": prompt, "output_length": answer}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def load(server, out, *options):
    """One measurement of `trireme load` on texts; its JSON."""
    command = [os.environ["TRIREME"], "load", f"http://127.0.0.1:{server.http}", "--model", NAME, "--completions",
               "--stream", "--threads", 1, "--json", out, *options]
    done = subprocess.run([str(w) for w in command], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: goals that are not met, which a search may say
        raise RuntimeError(f"load of {server.name} failed: {done.stderr[-800:]}{done.stdout[-800:]}")
    return json.loads(pathlib.Path(out).read_text(encoding="utf-8"))


def one_run(result, server):
    """The only run of a measurement; all its requests were answered."""
    run = result["runs"][0]
    if run["failed"] > 0:
        raise RuntimeError(f"{server.name}: {run['failed']} requests failed: {run['errors']}")
    if run["succeeded"] == 0:
        raise RuntimeError(f"{server.name} answered nothing in {run['window_s']:.0f} s: give a longer --slice-s")
    return run
