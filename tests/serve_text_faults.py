# Language models when things go wrong: a thousand clients that vanish, ten thousand requests that wait, a stop under
# load, the shortest and the longest prompt, a step that hangs, three times the load that there is room for.
# tier: all
# timeout: 420
import http.client
import json
import random
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from _serving import TRIREME, Server, run_cases, temporary, until
from serve_text import call, complete, make_model

POSITIONS = 4096
LABEL = '{model_name="talk",engine="0"}'
MIB = 1 << 20


class Repository:
    """A small model that takes long texts, and one whose prompts take seconds."""
    path = slow_path = None

    @classmethod
    def get(cls):
        if cls.path is None:
            cls.path = temporary()
            make_model(cls.path / "talk", POSITIONS)
        return cls.path

    @classmethod
    def slow(cls):
        if cls.slow_path is None:
            cls.slow_path = temporary()
            place = cls.slow_path / "slow"
            make_model(place, 2048)
            shape = "zoo:llama:layers=8,width=512,heads=8,kv_heads=8,inner=1376,vocabulary=424,positions=2048"
            with tempfile.TemporaryDirectory() as scratch:
                subprocess.run([TRIREME, "export", shape, scratch], check=True, capture_output=True)
                for name in ("config.json", "model.safetensors"):
                    (place / name).write_bytes((Path(scratch) / name).read_bytes())
        return cls.slow_path


def serve(*options, **more):
    return Server(Repository.get(), "--threads", "1", "--warm-up", "none", *options, **more)


def resident(server):
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS"))) * 1024


def state(server):
    m = server.metrics()
    return m["vllm:num_requests_running" + LABEL], m["vllm:num_requests_waiting" + LABEL], \
        m["vllm:kv_cache_usage_perc" + LABEL]


def open_stream(server, **members):
    """A socket that has asked for a stream."""
    body = json.dumps({"model": "talk", "prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True,
                       "temperature": 0, **members}).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return s


def vanish(s, draw):
    """Closes the socket in one of the ways in which clients go: in order, or with a reset."""
    if draw.random() < 0.5:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def case_a_thousand_vanish():
    prompts = [f"Chapter {i} of a book about the sea" for i in range(3)]
    draw = random.Random(5)
    with serve("--max-sequences", "64") as server:
        want = [complete(server, prompt=p, max_tokens=60)["choices"][0]["text"] for p in prompts]
        is_over, wrong, right = threading.Event(), [], [0]

        def well_behaved(i):
            while not is_over.is_set():
                # They go first, since the places are all taken by others.
                status, _, body = call(server, "/v1/completions", {"model": "talk", "prompt": prompts[i], "max_tokens":
                                       60, "temperature": 0}, {"x-priority": "1"})
                if status != 200 or body["choices"][0]["text"] != want[i]:
                    wrong.append((status, body))
                right[0] += 1

        threads = [threading.Thread(target=well_behaved, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        sizes = []
        for _ in range(8):
            crowd = [open_stream(server) for _ in range(125)]
            begun = crowd[0].recv(100)
            assert begun.startswith(b"HTTP/1.1 200"), begun
            until(lambda: sum(state(server)[:2]) >= 64)  # a reset takes along what the server has not read yet
            draw.shuffle(crowd)
            for s in crowd:
                vanish(s, draw)
            sizes.append(resident(server))
        until(lambda: right[0] >= 6 or wrong)
        is_over.set()
        for t in threads:
            t.join()
        assert not wrong, wrong[:1]
        until(lambda: state(server) == (0, 0, 0))
        assert sizes[-1] < sizes[1] + 32 * MIB, [s // MIB for s in sizes]
        metrics = server.metrics()
        assert metrics["vllm:request_success_total" + LABEL[:-1] + ',finished_reason="abort"}'] >= 500, metrics
        assert complete(server, prompt=prompts[0], max_tokens=60)["choices"][0]["text"] == want[0]
        assert server.stop() == 0


def case_ten_thousand_wait():
    many = {"model": "talk", "prompt": ["y"] * 2000, "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    with serve("--max-queue", "10000", "--max-sequences", "4", "--request-timeout", "0s") as server:
        def pace():
            """The server's processor time for a token while an answer of 300 that goes first comes: of three, and how
            many tokens all answers had meanwhile."""
            def reading():
                m = server.metrics()
                return m["process_cpu_seconds_total"], m["vllm:generation_tokens_total" + LABEL]

            before = reading()
            for _ in range(3):
                status, _, body = call(server, "/v1/completions", {**many, "prompt": "x"}, {"x-priority": "1"})
                assert status == 200 and body["usage"]["completion_tokens"] == 300, body
            cpu, tokens = (now - then for now, then in zip(reading(), before))
            return cpu / tokens, tokens

        crowd = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(5)]
        few = {**many, "prompt": ["y"] * 8}  # so that the steps are as large as later
        crowd[0].request("POST", "/v1/completions", json.dumps(few), {"Content-Type": "application/json"})
        quiet, _ = pace()
        crowd[0].getresponse().read()
        before = resident(server)
        for c in crowd:
            c.request("POST", "/v1/completions", json.dumps(many), {"Content-Type": "application/json"})
        until(lambda: state(server)[1] > 9950)
        # The sixth finds no room, and what waits costs neither memory nor time of those who run.
        for _ in range(3):
            status, head, _ = call(server, "/v1/completions", {**many, "prompt": ["z"] * 60})
            assert status == 429 and head["Retry-After"], status
        full = resident(server)
        assert full - before < 100 * MIB, (before // MIB, full // MIB)
        running, waiting, _ = state(server)
        assert running == 4 and waiting > 9000, (running, waiting)
        until(lambda: state(server)[1] < 9990)  # room for those that are measured
        busy, tokens = pace()
        print(f"processor time of a token: {quiet * 1e6:.0f} us, while many wait {busy * 1e6:.0f} us")
        assert busy < 3 * quiet, (quiet, busy)
        # Three answers of 300 beside three others in each step; one that waited for a place would see many more.
        assert tokens < 3 * 2 * 4 * 300, tokens
        for c in crowd:
            c.close()
        until(lambda: state(server) == (0, 0, 0))
        assert complete(server, prompt="x", max_tokens=3)["usage"]["completion_tokens"] == 3
        assert server.stop() == 0


def read_all(s, into, i):
    parts = []
    try:
        while part := s.recv(65536):
            parts.append(part)
    except OSError as error:
        parts.append(f"<{type(error).__name__}>".encode())
    into[i] = b"".join(parts)


def stop_under(server, answers, tokens):
    """SIGTERM while so many streams run or wait: the exit code, and what each client saw."""
    crowd = [open_stream(server, max_tokens=tokens) for _ in range(answers)]
    seen = [b""] * answers
    threads = [threading.Thread(target=read_all, args=(s, seen, i)) for i, s in enumerate(crowd)]
    for t in threads:
        t.start()
    asked = "trireme_http_requests_total"
    until(lambda: (m := server.metrics())[asked] > answers and m["vllm:generation_tokens_total" + LABEL] > 20)
    running, waiting, _ = state(server)
    assert running + waiting > answers / 4, (running, waiting)
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(150)
    for t in threads:
        t.join(30)
    return code, seen


def case_stop_under_load():
    with serve("--max-sequences", "16", "--exit-timeout", "120s") as server:
        code, seen = stop_under(server, 80, 400)
        assert code == 0, code
        for text in seen:  # those that waited are answered, too: they were accepted
            assert b"data: [DONE]" in text and b'"error"' not in text, text[-300:]


def case_stop_that_cannot_wait():
    with serve("--max-sequences", "16", "--exit-timeout", "1s") as server:
        code, seen = stop_under(server, 80, 4000)
        assert code == 6, code  # not everybody was answered
        assert not all(b"[DONE]" in text for text in seen)


def case_one_token_and_the_longest():
    longest = [3 + i % 400 for i in range(POSITIONS - 1)]
    with serve("--max-sequences", "8", "--chunk", "256") as server:
        alone = {}
        for name, prompt in (("one", [7]), ("longest", longest)):
            alone[name] = complete(server, prompt=prompt, max_tokens=1, ignore_eos=True, logprobs=1)["choices"][0]
        status, _, body = call(server, "/v1/completions", {"model": "talk", "prompt": longest + [7], "max_tokens": 1})
        assert status == 400 and "no room for an answer" in body["error"]["message"], body
        assert call(server, "/v1/completions", {"model": "talk", "prompt": [], "max_tokens": 1})[0] == 400
        got = []

        def ask(name, prompt):
            found = complete(server, prompt=prompt, max_tokens=1, ignore_eos=True, logprobs=1)["choices"][0]
            got.append((name, found == alone[name]))

        asks = [("one", [7])] * 12 + [("longest", longest)] * 3
        random.Random(3).shuffle(asks)
        threads = [threading.Thread(target=ask, args=a) for a in asks]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(got) == 15 and all(same for _, same in got), got
        assert server.stop() == 0


def case_a_step_that_hangs():
    """Not well while it takes so long, well again when it is through; nothing that was asked is lost."""
    with Server(Repository.slow(), "--threads", "1", "--warm-up", "none", "--chunk", "2048", "--instance-timeout",
                "150ms", "--grpc-port", "-1") as server:
        ask = {"model": "slow", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        assert call(server, "/v2/models/slow/ready")[0] == 200
        answers = []
        thread = threading.Thread(target=lambda: answers.append(call(
            server, "/v1/completions", {**ask, "prompt": [3 + i % 400 for i in range(2040)]})))
        thread.start()
        seen = {200}
        while thread.is_alive():
            seen.add(call(server, "/v2/models/slow/ready")[0])
            assert call(server, "/v2/health/live")[0] == 200
            time.sleep(0.01)
        thread.join()
        assert answers[0][0] == 200 and answers[0][2]["usage"]["completion_tokens"] == 2, answers
        assert seen == {200, 503}, seen
        until(lambda: call(server, "/v2/models/slow/ready")[0] == 200)
        assert server.stop() == 0


def load(server, *options):
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "load.json"
        done = subprocess.run([TRIREME, "load", server.url, "--model", "talk", "--completions", "--stream", "--json",
                               out, "--prompt-tokens", "60", "--answer-tokens", "60", "--warmup", "1s", *options],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())["runs"][0]


def case_three_times_the_load():
    # A thread for the model and few places: the client's own work must not be what is short.
    with serve("--max-queue", "32", "--max-sequences", "8") as server:
        def useful(*options):
            """A run, and how many tokens of answers the server made of a second of its processor time."""
            before = server.metrics()
            run = load(server, *options)
            m = server.metrics()
            tokens, cpu = (m[key] - before[key] for key in ("vllm:generation_tokens_total" + LABEL,
                                                            "process_cpu_seconds_total"))
            return run, tokens / cpu

        run, at_most = useful("--concurrency", "16", "--duration", "4s")
        # Three times what goes through, or more where the machine was busy with other work.
        rate = str(max(50, round(3 * run["throughput"], 1)))
        sizes = [resident(server)]
        over, while_over = useful("--rate", rate, "--duration", "6s")
        sizes.append(resident(server))
        assert set(over["errors"]) == {"status 429"}, over["errors"]
        assert over["failed"] > 0, over["scheduled"]
        print(f"tokens of a second of processor time: {at_most:.0f}, with three times the load {while_over:.0f}")
        assert while_over > 0.6 * at_most, (while_over, at_most)
        again = load(server, "--rate", rate, "--duration", "6s")
        sizes.append(resident(server))
        assert again["succeeded"] > 0 and sizes[2] < sizes[1] + 16 * MIB, [s // MIB for s in sizes]
        until(lambda: state(server) == (0, 0, 0))
        assert server.stop() == 0


if __name__ == "__main__":
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
