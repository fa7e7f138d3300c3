# Beginnings of texts on a disk: kill -9 and restart, damaged files, little room, one server at a time, tenants.
# timeout: 240
import json
import math
import os
import random
import shutil
import subprocess
from pathlib import Path

from _serving import ROOT, TRIREME, Server, Skip, run_cases, temporary, until
from serve_text import call, complete, make_model

PAGE_TOKENS, PAGE_BYTES = 16, 4096  # of the model of serve_text: 2 layers, 2 heads of 8, f32
HEAD_BYTES = 64


class Repository:
    path = None

    @classmethod
    def get(cls):
        if cls.path is None:
            cls.path = temporary()
            make_model(cls.path / "talk", 1024)
        return cls.path


def serve(*options, **more):
    return Server(Repository.get(), "--threads", "1", "--warm-up", "none", *options, **more)


def stored(server, event):
    return server.metrics()[f'trireme_text_stored_pages_total{{event="{event}"}}']


def page_files(directory):
    return [p for p in Path(directory).rglob("*.page")]


def prompts_of(seed, count=12):
    """As tokens: three beginnings of 200 tokens, each gone on with in several ways."""
    draw = random.Random(seed)
    starts = [[draw.randrange(3, 400) for _ in range(200)] for _ in range(3)]
    return [starts[i % 3] + [draw.randrange(3, 400) for _ in range(10)] for i in range(count)]


def answer(server, prompt, **members):
    body = complete(server, prompt=prompt, max_tokens=12, logprobs=1, ignore_eos=True, **members)
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    choice = body["choices"][0]
    return (choice["text"], choice["logprobs"]["token_logprobs"]), cached


def answers(server, prompts, **members):
    """Texts with their probabilities, and how many tokens of prompts did not run."""
    found = [answer(server, p, **members) for p in prompts]
    return [a for a, _ in found], sum(c for _, c in found)


def wait_written(server, directory):
    until(lambda: stored(server, "saved") == len(page_files(directory)), "pages are written beside the steps")


def case_kill_and_restart():
    directory, prompts = temporary() / "pages", prompts_of(1)
    with serve() as server:
        want, _ = answers(server, prompts)
        assert 'trireme_text_stored_pages_total{event="saved"}' not in server.metrics()
    with serve("--cache-disk", str(directory)) as server:
        got, first = answers(server, prompts)
        assert got == want
        wait_written(server, directory)
        assert stored(server, "loaded") == 0 and stored(server, "saved") > 0
        server.process.kill()
        server.process.wait()
    (directory / "00").mkdir(exist_ok=True)
    leftover = directory / "00" / ("0" * 32 + ".page.new")  # what a process leaves that is killed while it writes
    leftover.write_bytes(b"half a page")
    with serve("--cache-disk", str(directory)) as server:
        assert not leftover.exists()
        got, second = answers(server, prompts)
        assert got == want
        # The first of each beginning came from the disk, and the others as before; all but the last page's rest.
        assert second == sum((len(p) - 1) // PAGE_TOKENS * PAGE_TOKENS for p in prompts) > first, (second, first)
        assert stored(server, "loaded") > 0 and stored(server, "refused") == 0
        hits = server.metrics()['vllm:prefix_cache_hits_total{model_name="talk",engine="0"}']
        assert hits == second, (hits, second)


def case_killed_while_writing():
    directory, draw = temporary() / "pages", random.Random(3)
    prompts = prompts_of(2, 6)
    with serve() as server:
        want, _ = answers(server, prompts)
    for _ in range(4):
        with serve("--cache-disk", str(directory)) as server:
            got, _ = answers(server, prompts[:draw.randrange(1, 6)])
            assert got == want[:len(got)]
            server.process.kill()  # at any point of what is written
            server.process.wait()
    with serve("--cache-disk", str(directory)) as server:
        assert answers(server, prompts)[0] == want
        assert stored(server, "refused") == 0


def case_damaged():
    directory, prompts = temporary() / "pages", prompts_of(3)
    draw = random.Random(7)
    with serve("--cache-disk", str(directory)) as server:
        want, _ = answers(server, prompts)
        wait_written(server, directory)
        assert server.stop() == 0
    files = page_files(directory)
    assert all(p.stat().st_size == PAGE_BYTES + HEAD_BYTES for p in files)
    for path in files:
        content = bytearray(path.read_bytes())
        how = draw.randrange(3)
        if how == 0:
            content[draw.randrange(len(content))] ^= 1
        elif how == 1:
            del content[draw.randrange(len(content)):]
        else:
            content = draw.choice(files).read_bytes() if len(files) < 2 else next(
                p for p in files if p != path).read_bytes()  # another page's
        path.write_bytes(bytes(content))
    with serve("--cache-disk", str(directory)) as server:
        got, _ = answers(server, prompts)
        assert got == want
        assert stored(server, "refused") > 0
        assert server.stop() == 0  # what was computed again is written first
    with serve("--cache-disk", str(directory)) as server:
        got, cached = answers(server, prompts)
        assert got == want and cached > 0


def case_little_room():
    """Pages for 320 tokens, where all prompts have thousands: what is given up comes back from the disk."""
    prompts = prompts_of(5) * 2
    few = ("--cache-bytes", str(20 * PAGE_BYTES), "--max-length", "320")
    with serve(*few) as server:
        want, without = answers(server, prompts)
    directory = temporary() / "pages"
    with serve(*few, "--cache-disk", str(directory)) as server:
        got, cached = answers(server, prompts)
        assert got == want
        assert cached > 2 * without, (cached, without)
        assert stored(server, "loaded") > 0


def case_limit():
    directory, limit = temporary() / "pages", 30 * (PAGE_BYTES + HEAD_BYTES)
    with serve("--cache-disk", str(directory), "--cache-disk-limit", str(limit)) as server:
        want, _ = answers(server, prompts_of(8))
        until(lambda: stored(server, "saved") - stored(server, "deleted") == len(page_files(directory)))
        assert stored(server, "deleted") > 0 and len(page_files(directory)) <= 30
        kept = server.metrics()['trireme_text_stored_bytes{place="disk"}']
        assert kept == len(page_files(directory)) * (PAGE_BYTES + HEAD_BYTES) <= limit
    with serve("--cache-disk", str(directory), "--cache-disk-limit", str(limit // 3)) as server:
        assert len(page_files(directory)) <= 10
        assert answers(server, prompts_of(8))[0] == want


def case_one_server():
    directory = temporary() / "pages"
    with serve("--cache-disk", str(directory)):
        second = subprocess.run([TRIREME, "serve", "--model-repository", str(Repository.get()), "--http-port", "0",
                                 "--grpc-port", "-1", "--cache-disk", str(directory)], capture_output=True, text=True,
                                timeout=100)
        assert second.returncode == 6 and "another process keeps pages" in second.stderr, second


def case_salts():
    directory, prompt = temporary() / "pages", prompts_of(9, 1)[0]
    whole = (len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
    with serve("--cache-disk", str(directory), "--tenant-by", "header:x-tenant", "--cache-by-tenant") as server:
        def cached(tenant, **members):
            status, _, body = call(server, "/v1/completions", {"model": "talk", "prompt": prompt, "max_tokens": 4,
                                                               "temperature": 0, **members}, {"x-tenant": tenant})
            assert status == 200, body
            return body["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("a") == 0 and cached("a") == whole
        assert cached("b") == 0 and cached("b") == whole
        assert cached("a", cache_salt="mine") == 0 and cached("a", cache_salt="mine") == whole
        assert cached("b", cache_salt="mine") == 0 and cached("a") == whole
        status, _, body = call(server, "/v1/completions", {"model": "talk", "prompt": "x", "cache_salt": ""})
        assert status == 400 and body["error"]["param"] == "cache_salt", body


def case_stages():
    """Each stage has its own layers' part of a page, before a restart and behind it."""
    directory, prompts = temporary() / "pages", prompts_of(12, 6)
    with serve() as server:
        want, _ = answers(server, prompts)
    known = []
    for _ in range(2):
        with serve("--pp", "2", "--cache-disk", str(directory)) as server:
            got, cached = answers(server, prompts)
            assert got == want
            known.append(cached)
            assert server.stop() == 0
    assert known[1] == sum((len(p) - 1) // PAGE_TOKENS * PAGE_TOKENS for p in prompts) > known[0], known


def perplexity(cache_type, model, texts):
    """exp of the mean surprise of the texts' tokens, read through pages of a type."""
    surprise = []
    with Server(model.parent, "--threads", "2", "--warm-up", "none", "--cache-type", cache_type, "--chunk", "64",
                "--no-share-prefixes") as server:
        for text in texts:
            status, _, body = call(server, "/v1/completions", {"model": model.name, "prompt": text, "max_tokens": 0,
                                                               "echo": True, "logprobs": 1})
            assert status == 200, body
            surprise += [-p for p in body["choices"][0]["logprobs"]["token_logprobs"] if p is not None]
    return math.exp(sum(surprise) / len(surprise))


def case_codes_keep_perplexity():
    """Keys and values in int8 change the perplexity of a trained model by less than 0.5 %, in fp8 by less than 2 %."""
    given = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data")) / "llm/stories260K/stories260K.gguf"
    if not given.exists():
        raise Skip(f"no {given}")
    model = temporary() / "repository/stories"
    model.mkdir(parents=True)
    shutil.copy(given, model)
    lines = temporary() / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": "Once upon a time", "seed": i}) + "\n" for i in range(60)))
    told = subprocess.run([TRIREME, "generate", given, "--batch-file", lines, "--json", "--temperature", "1",
                           "--max-tokens", "250"], check=True, capture_output=True, text=True)
    texts = ["Once upon a time" + json.loads(line)["text"] for line in told.stdout.splitlines()]
    whole = perplexity("f32", model, texts)
    assert 1 < whole < 60, whole
    for cache_type, most in (("bf16", 0.005), ("int8", 0.005), ("fp8", 0.02)):
        change = perplexity(cache_type, model, texts) / whole - 1
        print(f"perplexity {whole:.4f} with f32, {cache_type}: {change:+.3%}")
        assert abs(change) < most, (cache_type, change)


def case_codes_on_ranks_and_disk():
    """Pages of codes are as those of floats: the same answers on several ranks, and from a disk."""
    prompts = prompts_of(13, 6)
    for cache_type in ("int8", "fp8"):
        directory, same = temporary() / "pages", ("--cache-type", cache_type)
        with serve(*same) as server:
            want, _ = answers(server, prompts)
        for spread in (("--tp", "2"), ("--pp", "2")):
            with serve(*same, *spread) as server:
                got, _ = answers(server, prompts)
                assert [text for text, _ in got] == [text for text, _ in want], (cache_type, spread)
        for cached in (False, True):
            with serve(*same, "--cache-disk", str(directory)) as server:
                assert answers(server, prompts)[0] == want, cache_type
                assert (stored(server, "loaded") > 0) == cached, cache_type
                assert server.stop() == 0


if __name__ == "__main__":
    run_cases([(name[5:], case) for name, case in list(globals().items()) if name.startswith("case_")])
