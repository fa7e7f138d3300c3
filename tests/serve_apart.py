# Prompts read by one server and answered by another, or by instances of one: the answers of a plain server to the
# byte, also where either side is killed, hangs, has another model or sends anything else.
# timeout: 240
import http.client
import http.server
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _serving import TRIREME, Server, free_port, run_cases, temporary, until
from serve_text import call, events, make_model

POSITIONS, PAGE_TOKENS = 1024, 16
LABEL = '{model_name="talk",engine="0"}'
SHAPE = f"zoo:llama:layers=4,width=192,heads=6,kv_heads=3,inner=512,vocabulary=424,positions={POSITIONS}"


def make_weights(path, seed=None):
    """A model whose prompts take some tenths of a second."""
    make_model(path, POSITIONS)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([TRIREME, "export", SHAPE, scratch], check=True, capture_output=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(Path(scratch) / name, path / name)
    if seed is not None:  # other weights: the last bytes of the file are one of them
        content = bytearray((path / "model.safetensors").read_bytes())
        content[-4:] = struct.pack("<f", 0.5 + seed)
        (path / "model.safetensors").write_bytes(bytes(content))


class Repository:
    paths = {}

    @classmethod
    def get(cls, seed=None):
        if seed not in cls.paths:
            cls.paths[seed] = temporary()
            make_weights(cls.paths[seed] / "talk", seed)
        return cls.paths[seed]


def serve(*options, repository=None, **more):
    """No limit of time but those that a case gives: other programs may have the machine."""
    if "--prefill-timeout" not in options:
        options += ("--prefill-timeout", "100s")
    return Server(repository or Repository.get(), "--threads", "1", "--warm-up", "none", "--chunk", "64",
                  "--keep-alive", "0", "--request-timeout", "0", *options, **more)


def prefill(*options, port="0", **more):
    server = serve("--pages-port", str(port), *options, **more)
    line = next(line for line in server.log if "listening" in line)
    server.pages_port = int(re.search(r"pages_port=(\d+)", line)[1])
    server.pages_url = f"http://127.0.0.1:{server.pages_port}"
    return server


def decode(url, *options, **more):
    return serve("--prefill-from", url, "--prefill-least", "16", *options, **more)


def total(server, name):
    return server.metrics()[f"trireme_text_{name}_total" + LABEL]


def fallbacks(server):
    """Reason -> count, without those that did not happen."""
    found = {}
    for name, value in server.metrics().items():
        match = re.match(r'trireme_text_hand_over_fallbacks_total\{.*reason="(\w+)"', name)
        if match and value > 0:
            found[match[1]] = value
    return found


def requests_of(seed, count=16):
    """Bodies of completions: prompts of several lengths and beginnings, greedy and drawn, alone and several."""
    draw = random.Random(seed)
    starts = [[draw.randrange(3, 400) for _ in range(300)] for _ in range(3)]
    bodies = []
    for i in range(count):
        rest = [draw.randrange(3, 400) for _ in range(draw.randrange(1, 500))]
        prompt = starts[i % 3][:draw.randrange(0, 300)] + rest
        bodies.append({"model": "talk", "prompt": prompt, "max_tokens": 8, "logprobs": 2, "seed": i, "ignore_eos": True,
                       "temperature": (0, 0.9)[i % 2], "n": (1, 1, 2)[i % 3], "frequency_penalty": (0, 0.4)[i % 4 == 1]})
    return bodies


def essence(body):
    """What a plain server says, too: all but the names of answers, and what was known before."""
    body = json.loads(json.dumps(body))
    for name in ("id", "created"):
        del body[name]
    body["usage"].pop("prompt_tokens_details", None)
    return body


def complete(server, body):
    status, _, answer = call(server, "/v1/completions", body)
    assert status == 200, answer
    return essence(answer)


def stream(server, body):
    """The words of each choice of a stream, with its probabilities."""
    words = {}
    for event in events(server, "/v1/completions", {**body, "stream": True})[:-1]:
        for choice in json.loads(event)["choices"]:
            words.setdefault(choice["index"], []).append((choice["text"], json.dumps(choice["logprobs"])))
    return words


class Plain:
    """What a server that reads its prompts itself says."""
    known = {}

    @classmethod
    def answers(cls, seed, count=16):
        if (seed, count) not in cls.known:
            with serve() as server:
                bodies = requests_of(seed, count)
                cls.known[seed, count] = ([complete(server, b) for b in bodies], [stream(server, b) for b in bodies])
        return cls.known[seed, count]


def all_at_once(server, bodies, ask=complete, beside=8):
    with ThreadPoolExecutor(beside) as pool:
        return list(pool.map(lambda body: ask(server, body), bodies))


def case_two_processes():
    wanted, streamed = Plain.answers(1)
    bodies = requests_of(1)
    with prefill() as other, decode(other.pages_url) as server:
        assert [complete(server, b) for b in bodies] == wanted
        pages = total(server, "handed_pages")
        assert pages > 100 and pages == total(other, "given_pages"), pages
        assert total(server, "handed_bytes") == total(other, "given_bytes") == pages * PAGE_TOKENS * 4 * 2 * 3 * 32 * 4
        m = server.metrics()
        asked = m["trireme_text_hand_over_seconds_count" + LABEL]
        assert asked >= len(bodies) - 3, asked
        assert fallbacks(server) == {}, fallbacks(server)
        # The prompts ran over there, and the time to the first token is from when a request came.
        ran = m["vllm:iteration_tokens_total_sum" + LABEL]
        assert ran < other.metrics()["vllm:iteration_tokens_total_sum" + LABEL] / 2, ran
        first = m["vllm:time_to_first_token_seconds_sum" + LABEL]
        assert first >= m["trireme_text_hand_over_seconds_sum" + LABEL] > 0
        # Now all is known here, and nobody is asked again.
        assert [stream(server, b) for b in bodies] == streamed
        assert total(server, "handed_pages") == pages
    with prefill() as other, decode(other.pages_url) as server:
        assert all_at_once(server, bodies, stream) == streamed
        assert all_at_once(server, bodies) == wanted
        assert total(server, "handed_pages") > 100 and fallbacks(server) == {}


def case_killed_prefill():
    wanted, _ = Plain.answers(2, 24)
    bodies, port = requests_of(2, 24), free_port()
    other = prefill(port=port)
    with decode(other.pages_url) as server, ThreadPoolExecutor(8) as pool:
        got = [pool.submit(complete, server, b) for b in bodies]
        until(lambda: total(other, "given_pages") > 20, "pages are given")
        other.process.kill()  # in the middle of prompts, some of which are on their way
        other.process.wait()
        assert [g.result() for g in got] == wanted
        assert fallbacks(server).keys() & {"unreachable", "partial"}, fallbacks(server)
        before = total(server, "handed_pages")
        fresh, _ = Plain.answers(3, 8)
        with prefill(port=port) as other:
            again = requests_of(3, 8)
            time.sleep(1.1)  # a server that was gone is asked again behind that
            assert all_at_once(server, again) == fresh
            assert total(other, "given_pages") > 0 and total(server, "handed_pages") > before


def case_killed_decode():
    wanted, _ = Plain.answers(1)
    bodies = requests_of(1)
    with prefill() as other:
        first = decode(other.pages_url)
        with ThreadPoolExecutor(8) as pool:
            lost = [pool.submit(call, first, "/v1/completions", b) for b in bodies]
            until(lambda: total(other, "given_pages") > 20, "pages are given")
            first.process.kill()
            first.process.wait()
            for answer in lost:
                answer.exception()  # its clients ask the next one again
        until(lambda: other.metrics()["vllm:num_requests_running" + LABEL] == 0, "what nobody waits for ends")
        with decode(other.pages_url) as server:
            known = other.metrics()["vllm:prefix_cache_hits_total" + LABEL]
            assert all_at_once(server, bodies) == wanted
            assert fallbacks(server) == {}
            assert other.metrics()["vllm:prefix_cache_hits_total" + LABEL] > known
        assert other.stop() == 0


def case_hanging_prefill():
    wanted, _ = Plain.answers(3, 8)
    bodies = requests_of(3, 8)
    with prefill() as other, decode(other.pages_url, "--prefill-timeout", "300ms") as server:
        os.kill(other.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert all_at_once(server, bodies) == wanted
        seen = fallbacks(server)
        assert seen.keys() <= {"late", "unreachable"} and "late" in seen, seen
        os.kill(other.process.pid, signal.SIGCONT)
        assert time.monotonic() - began < 60


def case_other_model():
    """Weights, type of the cache, size of pages: all answers are right, and no page of another model is taken."""
    wanted, _ = Plain.answers(3, 8)
    bodies = requests_of(3, 8)
    for options, seed in (((), 5), (("--cache-type", "bf16"), None), (("--page-tokens", "8"), None)):
        with prefill(*options, repository=Repository.get(seed)) as other, decode(other.pages_url) as server:
            assert [complete(server, b) for b in bodies] == wanted
            assert total(server, "handed_pages") == 0
            assert fallbacks(server).keys() <= {"mismatch", "refused", "partial", "unreachable"} and fallbacks(server)


class Liar(http.server.BaseHTTPRequestHandler):
    draw = random.Random(4)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        how = self.draw.randrange(5)
        if how == 0:
            return self.wfile.write(bytes(self.draw.randrange(256) for _ in range(300)))
        body = self.draw.randbytes(self.draw.randrange(200000))
        self.send_response((200, 200, 500, 204, 200)[how])
        self.send_header("Content-Length", str((len(body), 10**12, len(body), 0, len(body) + 5)[how]))
        self.end_headers()
        if how != 3:
            self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


def case_hostile_prefill():
    wanted, _ = Plain.answers(1)
    liar = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=liar.serve_forever, daemon=True).start()
    with decode(f"http://127.0.0.1:{liar.server_port}", "--prefill-timeout", "1s") as server:
        assert [complete(server, b) for b in requests_of(1)] == wanted
        assert total(server, "handed_pages") == 0 and fallbacks(server)
    liar.shutdown()


def ask_pages(server, body, path="/v2/models/talk/pages", method="POST", headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", server.pages_port, timeout=60)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, text, {"Content-Type": "application/json", **dict(headers)})
    reply = connection.getresponse()
    found = reply.status, reply.read()
    connection.close()
    return found


def case_hostile_requests():
    good = {"tokens": [5] * 32, "key": "0" * 32}
    with prefill("--restrict", "inference:x-key=secret") as server:
        key = {"x-key": "secret"}
        assert ask_pages(server, good)[0] == 403 and ask_pages(server, good, headers={"x-key": "secre"})[0] == 403
        status, body = ask_pages(server, good, headers=key)
        size = PAGE_TOKENS * 4 * 2 * 3 * 32 * 4 + 64
        assert status == 200 and len(body) == 2 * size and body[:8] == b"TRIKV01\n", (status, len(body))
        assert ask_pages(server, {**good, "first": 1}, headers=key)[1][:8] == b"TRIKV01\n"
        wrong = [b"", b"{", b"[]", b"\xff" * 100, {}, {"tokens": []}, {**good, "tokens": [424] * 16},
                 {**good, "tokens": [-1] * 16}, {**good, "tokens": [1] * 17}, {**good, "tokens": [1] * 2048},
                 {**good, "first": 2}, {**good, "first": -1}, {**good, "key": "x" * 32}, {**good, "key": "0"},
                 {**good, "salt": "0"}, {**good, "salt": "00" * 2000}, {**good, "tokens": "x"},
                 {**good, "priority": -1}]
        for body in wrong:
            status, text = ask_pages(server, body, headers=key)
            assert status == 400 and b"error" in text, (body, status, text)
        assert ask_pages(server, {**good, "adapter": "none"}, headers=key)[0] == 404
        assert ask_pages(server, good, "/v2/models/none/pages", headers=key)[0] == 404
        for path in ("/v2/models/talk", "/v1/models", "/metrics", "/v2/models/talk/infer", "/v2/models//pages"):
            assert ask_pages(server, good, path, headers=key)[0] == 404, path
        assert ask_pages(server, good, method="GET", headers=key)[0] == 405
        assert call(server, "/v2/models/talk/pages", good, key)[0] == 404  # not at the port of clients
        wanted, _ = Plain.answers(3, 8)
        with decode(server.pages_url, "--prefill-header", "x-key=${PAGES_KEY}",
                    environment={"PAGES_KEY": "secret"}) as asks, decode(server.pages_url) as has_none:
            for one in (asks, has_none):
                assert [complete(one, b) for b in requests_of(3, 8)] == wanted
            assert total(asks, "handed_pages") > 0 and fallbacks(asks) == {}
            assert total(has_none, "handed_pages") == 0 and fallbacks(has_none).keys() == {"refused"}


def case_salts():
    """Beginnings that are kept apart here are kept apart there."""
    prompt = [7 + i % 300 for i in range(200)]
    with prefill() as other:
        for salts in (["a", "b", "a"], ["c"]):
            with decode(other.pages_url) as server:
                for salt in salts:
                    complete(server, {"model": "talk", "prompt": prompt, "max_tokens": 2, "temperature": 0,
                                      "cache_salt": salt})
        hits = other.metrics()["vllm:prefix_cache_hits_total" + LABEL]
        assert hits == 0, hits


def case_adapters():
    """Pages of an adapter are found by its name and known by its weights."""
    from adapters import ADAPTERS, Repository as WithAdapters
    room, names = ("--max-adapters", "3"), ["talk", *(f"talk:{name}" for name in ADAPTERS)]
    bodies = [{"model": name, "prompt": [3 + i * 7 % 400 for i in range(100)], "max_tokens": 8, "temperature": 0,
               "logprobs": 1} for name in names]
    with serve(*room, repository=WithAdapters.get()) as server:
        wanted = [complete(server, b) for b in bodies]
    assert len({json.dumps(w["choices"]) for w in wanted}) == len(names)
    with prefill(*room, repository=WithAdapters.get()) as other, \
            decode(other.pages_url, *room, repository=WithAdapters.get()) as server:
        assert all_at_once(server, bodies) == wanted
        assert total(server, "handed_pages") == 6 * len(names) and fallbacks(server) == {}
    swapped = WithAdapters.copy()
    adapters = swapped / "talk/adapters"
    shutil.rmtree(adapters / "polite")
    (adapters / "brief").rename(adapters / "other")
    (adapters / "loud").rename(adapters / "brief")
    (adapters / "other").rename(adapters / "loud")
    with prefill(*room, repository=swapped) as other, \
            decode(other.pages_url, *room, repository=WithAdapters.get()) as server:
        assert [complete(server, b) for b in bodies] == wanted
        assert total(server, "handed_pages") == 6  # of the model alone
        assert fallbacks(server) == {"refused": 1, "mismatch": 2}, fallbacks(server)


def case_instances():
    wanted, streamed = Plain.answers(1)
    bodies = requests_of(1)
    with serve("--prefill-instances", "2", "--prefill-threads", "1", "--prefill-least", "16") as server:
        assert all_at_once(server, bodies) == wanted
        assert total(server, "handed_pages") > 100 and fallbacks(server) == {}
        assert server.stop() == 0
    own = temporary()
    shutil.copytree(Repository.get() / "talk", own / "talk")
    (own / "talk/config.pbtxt").write_text('parameters { key: "prefill_instances" value { string_value: "1" } }\n')
    with serve("--prefill-least", "16", repository=own) as server:
        assert all_at_once(server, bodies, stream) == streamed
        assert total(server, "handed_pages") > 100 and fallbacks(server) == {}
    # Little room on both sides: texts are put back, pages do not all fit.
    with serve("--prefill-instances", "1", "--prefill-least", "16", "--cache-bytes", str(70 * PAGE_TOKENS * 3072),
               "--prefill-room", str(8 * PAGE_TOKENS * 3072)) as server:
        assert all_at_once(server, bodies) == wanted
        assert total(server, "handed_pages") > 0


def case_traces():
    """The time in which pages were waited for is a part of the time in the queue."""
    path = temporary() / "trace.json"
    with serve("--prefill-instances", "1", "--prefill-least", "16", "--trace", "--trace-rate", "1", "--trace-file",
               str(path)) as server:
        status, _, body = call(server, "/v2/models/talk/generate", {"text_input": "The king of the sea. " * 20})
        assert status == 200, body
        assert server.stop() == 0
    times = {t["name"]: t["ns"] for record in json.loads(path.read_text()) for t in record.get("timestamps", [])}
    assert times["QUEUE_START"] <= times["PAGES_START"] < times["PAGES_END"] <= times["COMPUTE_START"], times


def case_options():
    for options, word in ((("--prefill-from", "http://x:1", "--prefill-instances", "1"), "--prefill-instances"),
                          (("--prefill-from", "https://x:1"), "scheme"), (("--prefill-from", "http://x:0"), "port"),
                          (("--prefill-from", "http://x:1", "--prefill-header", "x"), "name=secret"),
                          (("--pages-port", "0", "--no-share-prefixes"), "--no-share-prefixes")):
        server = subprocess.run(
            [TRIREME, "serve", "--model-repository", str(Repository.get()), "--http-port", "0", "--grpc-port", "-1",
             *options], capture_output=True, text=True, timeout=100)
        assert server.returncode == 2 and word in server.stderr, (options, server)


if __name__ == "__main__":
    run_cases([(name[5:], case) for name, case in list(globals().items()) if name.startswith("case_")])
