# Keys of tenants with quotas: who is let in, 429 with the headers that clients read, and files of keys that change.
import json
import threading
import time
import urllib.request

import openai

from _serving import Server, add_simple, run_cases, temporary, until
from serve_text import call, make_model

ASK = {"model": "talk", "prompt": "The king", "max_tokens": 8, "temperature": 0}


class Host:
    """One server whose file of keys the cases write anew."""
    server = None

    @classmethod
    def with_keys(cls, *entries):
        if cls.server is None:
            cls.root = temporary()
            make_model(cls.root / "models/talk")
            add_simple(cls.root / "models")
            cls.file = cls.root / "keys.yaml"
            cls.write(entries)
            cls.server = Server(cls.root / "models", "--threads", "1", "--warm-up", "none", "--api-keys", str(cls.file))
        else:
            reads = cls.reads()
            cls.write(entries)
            cls.wait(lambda: cls.reads() > reads)
        return cls.server

    @classmethod
    def write(cls, entries):
        part = cls.root / "keys.part"
        part.write_text(json.dumps({"keys": entries}))  # which is YAML, too
        part.rename(cls.file)

    @classmethod
    def reads(cls):
        return sum("keys_read" in line for line in cls.server.log)

    @classmethod
    def wait(cls, is_so):
        until(is_so, cls.server.log[-5:])


def key(tenant, **members):
    return {"tenant": tenant, "key": f"sk-of-{tenant}", **members}


def show(tenant):
    return {"Authorization": f"Bearer sk-of-{tenant}"}


def complete(server, tenant, **members):
    return call(server, "/v1/completions", {**ASK, **members}, show(tenant))


def case_who_is_let_in():
    server = Host.with_keys(key("open-one"), key("bound", models=["other*"]))
    assert call(server, "/v1/completions", ASK)[0] == 401
    assert complete(server, "nobody")[0] == 401
    status, head, body = complete(server, "open-one")
    assert status == 200 and "x-ratelimit-limit-tokens" not in head, (status, dict(head))
    status, _, body = complete(server, "bound")
    assert status == 404 and body["error"]["code"] == "model_not_found", body
    assert call(server, "/v1/models")[0] == 200  # metadata is open, as without keys
    # Tensors go through the same door.
    tensors = {"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
                          for i in (0, 1)]}
    assert call(server, "/v2/models/simple/infer", tensors)[0] == 403
    assert call(server, "/v2/models/simple/infer", tensors, show("bound"))[0] == 403
    assert call(server, "/v2/models/simple/infer", tensors, show("open-one"))[0] == 200


def case_requests_a_minute():
    server = Host.with_keys(key("three", requests_per_minute=3), key("other", requests_per_minute=3))
    left = []
    for _ in range(3):
        status, head, _ = complete(server, "three")
        assert status == 200 and head["x-ratelimit-limit-requests"] == "3", (status, dict(head))
        left.append(head["x-ratelimit-remaining-requests"])
    assert left == ["2", "1", "0"], left
    status, head, body = complete(server, "three")
    assert status == 429 and body["error"]["code"] == "rate_limit_exceeded", body
    assert body["error"]["type"] == "rate_limit_error" and 1 <= int(head["Retry-After"]) <= 20, dict(head)
    assert complete(server, "other")[0] == 200  # whose quota is its own
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-of-three", max_retries=0)
    try:
        client.completions.create(**ASK)
        raise AssertionError("a fourth request in a minute")
    except openai.RateLimitError as error:
        assert error.response.headers["x-ratelimit-remaining-requests"] == "0", error.response.headers
    # A key with a quota does not go round it by another protocol.
    status, _, body = call(server, "/v2/models/talk/generate", {"text_input": "x"}, show("three"))
    assert status == 403 and "OpenAI API" in body["error"], body
    metrics = server.metrics()
    assert metrics['trireme_tenant_quota_refusals_total{tenant="three"}'] == 2, metrics


def case_tokens_a_minute():
    server = Host.with_keys(key("tokens", tokens_per_minute=300))
    ids = [30 + i % 9 for i in range(100)]
    status, head, body = complete(server, "tokens", prompt=ids, max_tokens=50)
    assert status == 200 and body["usage"]["total_tokens"] == 150, body
    assert head["x-ratelimit-limit-tokens"] == "300" and head["x-ratelimit-remaining-tokens"] == "150", dict(head)
    # What an answer may have is held for it, and what it did not need comes back.
    status, head, _ = complete(server, "tokens", prompt=ids, max_tokens=51)
    assert status == 429 and head["Retry-After"], dict(head)
    for _ in range(2):
        status, head, body = complete(server, "tokens", prompt="Say", max_tokens=100, stop_token_ids=list(range(424)))
        assert status == 200 and body["usage"]["completion_tokens"] == 0, body
    status, _, body = complete(server, "tokens", prompt=ids, max_tokens=201)  # never fits: no use to wait
    assert status == 400 and "301 tokens" in body["error"]["message"], body
    counted = server.metrics()['trireme_tenant_tokens_total{tenant="tokens"}']
    assert 150 < counted < 175, counted


def case_streams_and_chats_are_counted():
    server = Host.with_keys(key("chats", tokens_per_minute=2000))
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-of-chats", max_retries=0)
    with client.completions.with_streaming_response.create(**{**ASK, "stream": True}) as reply:
        assert reply.headers["x-ratelimit-limit-tokens"] == "2000", reply.headers
        assert "[DONE]" in reply.text()
    messages = [{"role": "user", "content": "Who?"}]
    asked = client.chat.completions.create(model="talk", messages=messages, temperature=0)  # as long as it gets
    total = asked.usage.total_tokens
    assert total > 400, asked.usage
    answer = client.responses.create(model="talk", input="Who?", max_output_tokens=16)
    used = 8 + total + answer.usage.total_tokens
    counted = server.metrics()['trireme_tenant_tokens_total{tenant="chats"}']
    assert used < counted <= used + 20, (used, counted)  # and the first prompt


def case_a_client_that_leaves_pays_for_what_it_had():
    server = Host.with_keys(key("leaver", tokens_per_minute=400))
    body = json.dumps({**ASK, "max_tokens": 380, "ignore_eos": True, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", body,
                                     {"Content-Type": "application/json", **show("leaver")})
    name = 'trireme_tenant_tokens_total{tenant="leaver"}'
    with urllib.request.urlopen(request, timeout=30) as reply:
        reply.read(200)
        so_far = server.metrics()[name]
    Host.wait(lambda: server.metrics()['vllm:num_requests_running{model_name="talk",engine="0"}'] == 0)
    # What was held for the answer is not counted, so the counter has no reason to fall.
    assert 2 <= so_far <= server.metrics()[name] < 380, (so_far, server.metrics()[name])


def case_files_change():
    server = Host.with_keys(key("first", requests_per_minute=2))
    assert complete(server, "first")[0] == 200 and complete(server, "second")[0] == 401
    running = []
    thread = threading.Thread(target=lambda: running.append(complete(server, "first", max_tokens=400)))
    thread.start()
    time.sleep(0.05)
    Host.with_keys(key("second"))
    thread.join()
    assert running[0][0] == 200, running  # it was let in
    assert complete(server, "first")[0] == 401 and complete(server, "second")[0] == 200
    Host.file.write_text("keys: [{tenant: broken")
    Host.wait(lambda: any("keys_not_read" in line for line in server.log))
    assert complete(server, "second")[0] == 200  # a wrong file changes nothing
    assert not any("sk-of-" in line for line in server.log), "a key in the log"
    Host.with_keys(key("third"))
    assert complete(server, "second")[0] == 401 and complete(server, "third")[0] == 200


def case_zz_stop():
    if Host.server is not None:
        assert Host.server.stop() == 0


if __name__ == "__main__":
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
