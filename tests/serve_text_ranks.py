# Language models whose ranks are processes of a job: served with the tokens and chances of local ranks, with adapters,
# beside others, loaded and unloaded; what happens when a rank cannot load one, or dies.
# timeout: 400
import http.client
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file

import _ranks
from _serving import TRIREME, Server, Skip, run_cases, save, temporary, until, value
from adapters import MODULES, load, unload, write_adapter
from serve_text import call, events, make_model

PROMPT = "The king of the sea and the wind"
ADAPTER = "talk:polite"


class Repository:
    """A language model with an adapter, made once."""
    path = None

    @classmethod
    def get(cls):
        if cls.path is None:
            cls.path = temporary()
            make_model(cls.path / "talk")
            weights = load_file(cls.path / "talk/model.safetensors")
            write_adapter(cls.path / "talk/adapters/polite", weights, MODULES, 8, 16, 1)
            write_adapter(cls.path / "talk/spare", weights, MODULES[:3], 4, 8, 2)
        return cls.path


OPTIONS = ["--threads", "1", "--max-adapters", "2", "--chunk", "48"]


class Job:
    """A server whose ranks are processes, as a context manager. `launcher`: what starts it."""
    count = 0

    def __init__(self, ranks, *options, launcher=None, repository=None):
        reason = _ranks.why_no_mpi()
        if reason:
            raise Skip(reason)
        self.log, self.port = [], None
        Job.count += 1
        self.mark = f"TEXT_RANKS_JOB={os.getpid()}.{Job.count}"  # by which its processes are found
        launcher = launcher or ["mpirun", "-n", str(ranks)]
        self.process = subprocess.Popen(
            [*launcher, TRIREME, "serve", "--model-repository", str(repository or Repository.get()), "--host",
             "127.0.0.1", "--http-port", "0", "--grpc-port", "-1", *OPTIONS, *options],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env=dict(_ranks.environment(), **dict([self.mark.split("=")])))
        threading.Thread(target=self._read, daemon=True).start()
        until(lambda: self.port is not None or self.process.poll() is not None, "the job is not ready")
        assert self.port is not None, "".join(self.log)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(r"serve ready .*port=(\d+)", line)
            if match:
                self.port = int(match[1])

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def ranks(self):
        """Processes that serve or follow, by their ranks."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                command = (entry / "cmdline").read_bytes().split(b"\0") if words else []
            except OSError:
                continue
            rank = [word for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if rank and self.mark.encode() in words and b"serve" in command[:2]:
                found[int(rank[0].split(b"=")[1])] = int(entry.name)
        return found

    def stop(self):
        """SIGTERM to the rank that serves; gives the exit code of the job."""
        os.kill(self.ranks()[0], signal.SIGTERM)
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


ASKS = [{}, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.4, "presence_penalty": 0.5},
        {"logit_bias": {"9": 5, "70": -100}}, {"model": ADAPTER}, {"model": ADAPTER, "temperature": 0.7, "seed": 5},
        {"prompt": PROMPT + " again", "n": 2, "temperature": 1.1, "seed": 1}, {"echo": True, "max_tokens": 2},
        {"prompt": PROMPT * 12, "max_tokens": 9}]


def answers_of(server, model="talk"):
    """Tokens and chances of all asks, at once: rows of one step are of several texts."""
    found = [None] * len(ASKS)

    def ask(i):
        body = {"model": model, "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "logprobs": 2, **ASKS[i]}
        body["model"] = body["model"].replace("talk", model)
        status, _, answer = call(server, "/v1/completions", body)
        assert status == 200, answer
        found[i] = [(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"]) for c in answer["choices"]]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(ASKS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in found, found
    chat = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0,
            "stream": True}
    return found, [event[event.find("choices"):] for event in events(server, "/v1/chat/completions", chat)]


def as_local_ranks(tp, pp, *options):
    layout = ["--tp", str(tp), "--pp", str(pp), *options]
    with Server(Repository.get(), *OPTIONS, *layout) as server:
        want = answers_of(server)
    with Job(tp * pp, *layout) as job:
        got = answers_of(job)
        assert got == want, (got, want)
        assert answers_of(job)[0][4] == want[0][4], "with beginnings that are known"
        assert job.stop() == 0, "".join(job.log)


def case_parts_of_weights():
    as_local_ranks(2, 1)


def case_stages():
    as_local_ranks(1, 2, "--weights", "int8", "--weight-group", "32")


def case_stages_of_parts():
    as_local_ranks(2, 2, "--speculate", "lookup")


def case_models_come_and_go():
    """What the first rank loads the others load, too; adapters come to them from it."""
    with Job(2, "--pp", "2", "--model-control", "explicit", "--load-model", "talk") as job:
        want = answers_of(job)
        assert load(job, "talk:more", "spare")[0] == 200
        body = {"model": "talk:more", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "logprobs": 2}
        more = call(job, "/v1/completions", body)[2]["choices"][0]["logprobs"]["token_logprobs"]
        assert more != want[0][0][0][1] and more != want[0][4][0][1]
        assert unload(job, "talk:more")[0] == 200
        for _ in range(2):
            assert call(job, "/v2/repository/models/talk/unload", {})[0] == 200
            assert call(job, "/v1/completions", body | {"model": "talk"})[0] == 404
            assert call(job, "/v2/repository/models/talk/load", {})[0] == 200
            assert answers_of(job) == want
        assert job.stop() == 0, "".join(job.log)


def write_tensors(path):
    """A model of tensors, [batch, 8] to [batch, 8], whose products two ranks split; with a precision of its own."""
    draw = np.random.default_rng(4)
    weights = [onnx.numpy_helper.from_array(draw.normal(0, 0.3, shape).astype(np.float32), name)
               for name, shape in (("up", (8, 32)), ("down", (32, 8)))]
    nodes = [helper.make_node("MatMul", ["x", "up"], ["u"]), helper.make_node("Tanh", ["u"], ["t"]),
             helper.make_node("MatMul", ["t", "down"], ["y"])]
    save(nodes, [value("x", TensorProto.FLOAT, ["batch", 8])], [value("y", TensorProto.FLOAT, ["batch", 8])],
         path / "1/model.onnx", weights)
    (path / "config.pbtxt").write_text('parameters { key: "precision" value { string_value: "bf16" } }\n')


def case_models_side_by_side():
    """Each as its own configuration says, on all ranks."""
    root = temporary()
    for name in ("talk", "stored"):
        shutil.copytree(Repository.get() / "talk", root / name)
    own = {"weights": "int8", "weight_group": "32", "speculate": "lookup"}
    (root / "stored/config.pbtxt").write_text("".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n' for key, text in own.items()))
    write_tensors(root / "tensors")

    def ask(server):
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 8], "data": [i / 9 for i in range(16)]}]}
        status, _, answer = call(server, "/v2/models/tensors/infer", body)
        assert status == 200, answer
        return [answers_of(server), answers_of(server, "stored"), answer["outputs"][0]["data"]]

    with Server(root, *OPTIONS, "--tp", "2") as server:
        want = ask(server)
    assert want[0] != want[1], "the weights in 8 bits change nothing"
    with Job(2, "--tp", "2", repository=root) as job:
        assert ask(job) == want
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda _: ask(job), range(2)))
        assert both == [want, want]
        assert job.stop() == 0, "".join(job.log)


def case_a_rank_without_the_files():
    """What one rank cannot load, or has loaded otherwise, is refused by its load; other models go on."""
    root = temporary()
    for rank in ("0", "1"):
        for name in ("talk", "missing", "changed"):
            shutil.copytree(Repository.get() / "talk", root / rank / "models" / name)
    (root / "1/models/missing/model.safetensors").unlink()
    weights = load_file(root / "1/models/changed/model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 2
    save_file(weights, root / "1/models/changed/model.safetensors", {"format": "pt"})
    launcher = ["mpirun", "-n", "2", "sh", "-c", f'cd {root}/$OMPI_COMM_WORLD_RANK && exec "$0" "$@"']
    with Job(2, "--tp", "2", "--model-control", "explicit", "--load-model", "talk", launcher=launcher,
             repository="models") as job:
        want = answers_of(job)
        for name, words in (("missing", "rank 1"), ("changed", "ranks 0 and 1 loaded different")):
            status, _, body = call(job, f"/v2/repository/models/{name}/load", {})
            assert status in (400, 404) and words in body["error"], (name, status, body)
            assert answers_of(job) == want
        shutil.copy(root / "0/models/missing/model.safetensors", root / "1/models/missing")
        assert call(job, "/v2/repository/models/missing/load", {})[0] == 200
        assert answers_of(job, "missing") == want
        assert job.stop() == 0, "".join(job.log)


def case_lost_rank():
    """Texts under way end or fail with 503, the job ends, and the launcher starts it again as often as it may."""
    with Job(2, "--tp", "2", launcher=[TRIREME, "launch", "-n", "2", "--kind", "mpi", "--restarts", "1", "--"]) as job:
        want = answers_of(job)
        for is_last in (False, True):
            ranks, before, job.port = job.ranks(), SimpleNamespace(url=job.url), None
            assert sorted(ranks) == [0, 1], ranks
            os.kill(ranks[1], signal.SIGKILL)
            codes = set()
            while job.port is None and job.process.poll() is None:
                try:
                    body = {"model": "talk", "prompt": PROMPT, "max_tokens": 200}
                    codes.add(call(before, "/v1/completions", body)[0])
                except (OSError, http.client.HTTPException):
                    time.sleep(0.02)
            assert codes <= {200, 503}, codes
            if not is_last:
                assert job.port is not None, "".join(job.log)
                assert answers_of(job) == want
                assert job.ranks()[0] != ranks[0]
        # The server's own exit is 6; Open MPI's mpirun, which ends it when a rank is killed, gives that rank's.
        assert job.process.wait(60) in (6, 128 + signal.SIGKILL), "".join(job.log)


if __name__ == "__main__":
    run_cases([(name.removeprefix("case_").replace("_", " "), case) for name, case in list(globals().items())
               if name.startswith("case_")])
