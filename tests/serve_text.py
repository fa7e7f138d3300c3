# Language models on the server: the OpenAI API and KServe's generate beside each other, streams, stops, faults.
import base64
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from _serving import ROOT, TRIREME, Server, run_cases, temporary, until

LLAMA = "zoo:llama:layers=2,width=32,heads=4,kv_heads=2,inner=48,vocabulary=424,positions="
TEMPLATE = ("{% for m in messages %}[{{ m.role }}{% if loud %}!{% endif %}] {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant] {% endif %}"
            "{% for m in messages if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endfor %}"
            "{% if messages[0].role == 'tool' %}{{ raise_exception('begins with a tool') }}{% endif %}")
LONG = 400  # tokens of an answer that takes a while


def make_model(path, positions=512, end=None):
    """`end`: number of the token that ends texts; None: the model names none."""
    vectors = json.loads((ROOT / "src/data/testdata/bpe_vectors.json").read_text())
    tokenizer = next(s for s in vectors["small"] if s["name"] == "llama3")["tokenizer"]
    subprocess.run([TRIREME, "export", LLAMA + str(positions), str(path)], check=True, capture_output=True)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    if end is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))


class Repository:
    """One language model and nothing else, made once."""
    path = None

    @classmethod
    def get(cls):
        if cls.path is None:
            cls.path = temporary()
            make_model(cls.path / "talk")
        return cls.path


def serve(*options, **more):
    return Server(Repository.get(), "--threads", "1", *options, **more)


def call(server, path, body=None, headers=None, method=None):
    """Status, headers and body of a request; JSON where it is."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, method=method,
                                     headers={"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read().decode()
            status, head = reply.status, reply.headers
    except urllib.error.HTTPError as error:
        text, status, head = error.read().decode(), error.code, error.headers
    return status, head, json.loads(text) if text[:1] in "{[" and text else text


def complete(server, **members):
    status, _, body = call(server, "/v1/completions", {"model": "talk", "temperature": 0, **members})
    assert status == 200, body
    return body


def events(server, path, body):
    """The data of each event of a stream."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream"), reply.headers
        text = reply.read().decode()
    assert text.endswith("\n\n"), text[-80:]
    found = []
    for event in text[:-2].split("\n\n"):
        assert event.startswith("data: "), event
        found.append(event[6:])
    return found


def reference(prompt, tokens, *options):
    """What `trireme generate` says."""
    out = subprocess.run([TRIREME, "generate", str(Repository.get() / "talk"), "--prompt", prompt, "--max-tokens",
                          str(tokens), "--json", "--threads", "1", *options], check=True, capture_output=True)
    return json.loads(out.stdout)


def error_of(server, path="/v1/completions", **members):
    status, head, body = call(server, path, {"model": "talk", **members})
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    return status, body["error"], head


def case_models():
    with serve() as server:
        status, _, body = call(server, "/v1/models")
        assert status == 200 and body["object"] == "list", body
        assert [m["id"] for m in body["data"]] == ["talk"]
        one = call(server, "/v1/models/talk")[2]
        assert one == body["data"][0] and one["max_model_len"] == 512 and one["object"] == "model", one
        assert call(server, "/v1/models/none")[2]["error"]["code"] == "model_not_found"
        assert call(server, "/health")[0] == 200 and call(server, "/v1/none")[0] == 404
        assert call(server, "/v1/completions")[0] == 405


def case_same_as_generate():
    prompt = "The king of the sea"
    want = reference(prompt, 40)
    with serve() as server:
        got = complete(server, prompt=prompt, max_tokens=40)
        choice = got["choices"][0]
        assert choice["text"] == want["text"] and choice["finish_reason"] == want["finish"], (choice, want)
        usage = got["usage"]
        assert usage["completion_tokens"] == len(want["tokens"]), usage
        assert usage["prompt_tokens"] == want["prompt_tokens"], usage
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        # As tokens, by KServe's generate, and with a draw.
        ids = call(server, "/tokenize", {"model": "talk", "prompt": prompt})[2]["tokens"]
        assert complete(server, prompt=ids, max_tokens=40)["choices"][0]["text"] == want["text"]
        assert call(server, "/detokenize", {"model": "talk", "tokens": ids})[2]["prompt"].endswith(prompt)
        body = {"text_input": prompt, "parameters": {"max_tokens": 40, "temperature": 0}}
        status, _, flat = call(server, "/v2/models/talk/generate", body)
        assert status == 200 and flat["text_output"] == want["text"], flat
        pieces = [json.loads(e)["text_output"] for e in events(server, "/v2/models/talk/generate_stream", body)]
        assert "".join(pieces) == want["text"] and len(pieces) > 5, pieces
        written = call(server, "/v2/models/talk/stats")[2]["model_stats"][0]["response_stats"]["0"]["compute_output"]
        assert written["count"] and written["ns"] < written["count"] * 1e9, written  # of each piece its own time
        drawn = reference(prompt, 30, "--temperature", "0.8", "--seed", "7", "--top-k", "50")
        got = complete(server, prompt=prompt, max_tokens=30, temperature=0.8, seed=7, top_k=50)
        assert got["choices"][0]["text"] == drawn["text"]


def case_streams():
    body = {"model": "talk", "temperature": 0, "prompt": "Once upon", "max_tokens": 30, "stream": True,
            "stream_options": {"include_usage": True}}
    with serve() as server:
        whole = complete(server, prompt="Once upon", max_tokens=30)
        found = events(server, "/v1/completions", body)
        assert found[-1] == "[DONE]"
        chunks = [json.loads(e) for e in found[:-1]]
        assert len({c["id"] for c in chunks}) == 1 and all(c["object"] == "text_completion" for c in chunks)
        assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == whole["choices"][0]["text"]
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "length"
        assert all(c["usage"] is None for c in chunks[:-1])
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 30
        body["stream_options"]["continuous_usage_stats"] = True
        found = [json.loads(e)["usage"] for e in events(server, "/v1/completions", body)[:-1]]
        assert {u["prompt_tokens"] for u in found} == {whole["usage"]["prompt_tokens"]}, found
        body["stream_options"].pop("continuous_usage_stats")
        # Several answers to several prompts in one stream: each by its index as it is alone.
        body.update(prompt=["Once upon", "The king"], n=2, temperature=0.9, seed=5)
        texts = {}
        for e in events(server, "/v1/completions", body)[:-2]:
            choice = json.loads(e)["choices"][0]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        body.update(stream=False)
        body.pop("stream_options")
        whole = call(server, "/v1/completions", body)[2]
        assert {c["index"]: c["text"] for c in whole["choices"]} == texts and len(texts) == 4
        assert len(set(texts.values())) == 4
        seed = complete(server, prompt="The king", max_tokens=30, temperature=0.9, seed=6)
        assert seed["choices"][0]["text"] == texts[3], "the second answer is drawn with the next seed"


def case_options():
    with serve() as server:
        plain = complete(server, prompt="Tell me", max_tokens=24)["choices"][0]["text"]
        stop = plain[len(plain) // 2:len(plain) // 2 + 3]
        choice = complete(server, prompt="Tell me", max_tokens=24, stop=[stop])["choices"][0]
        assert choice["text"] == plain[:plain.index(stop)] and choice["finish_reason"] == "stop", choice
        choice = complete(server, prompt="Tell me", max_tokens=24, echo=True)["choices"][0]
        assert choice["text"].endswith("Tell me" + plain), choice
        best = complete(server, prompt="Tell me", max_tokens=8, n=2, best_of=5, temperature=1, seed=3)
        every = complete(server, prompt="Tell me", max_tokens=8, n=5, temperature=1, seed=3, logprobs=0)
        mean = {c["text"]: sum(c["logprobs"]["token_logprobs"]) / 8 for c in every["choices"]}
        want = sorted(mean, key=mean.get, reverse=True)[:2]
        assert [c["text"] for c in best["choices"]] == want, (best, mean)
        biased = complete(server, prompt="Tell me", max_tokens=5, logit_bias={"65": 100})["choices"][0]["text"]
        assert len(set(biased)) == 1 or biased == biased[:len(biased) // 5] * 5, biased
        for count in (0, 1, 5, 20):
            listed = complete(server, prompt="Tell me", max_tokens=6, logprobs=count)["choices"][0]
            assert listed["text"] == complete(server, prompt="Tell me", max_tokens=6)["choices"][0]["text"]
            tops = listed["logprobs"]["top_logprobs"]
            for token, p, top in zip(listed["logprobs"]["tokens"], listed["logprobs"]["token_logprobs"], tops):
                assert len(top) <= max(count, 1) and top[token] == max(top.values()), (count, top)
                assert abs(top[token] - p) < 1e-4 and sorted(top.values(), reverse=True) == list(top.values()), top
            assert count < 2 or len(tops[0]) > count // 2, tops[0]
        logged = complete(server, prompt="Tell me", max_tokens=6, logprobs=1)["choices"][0]
        p = logged["logprobs"]
        assert len(p["tokens"]) == len(p["token_logprobs"]) == len(p["text_offset"]) == 6
        assert all(v <= 0 for v in p["token_logprobs"]) and "".join(p["tokens"]) == logged["text"], p
        held = complete(server, prompt="Tell me", max_tokens=6, logprobs=1, stop=[logged["text"][1:] + "?"])
        held = held["choices"][0]  # all but its first character waited for the end
        assert held["text"] == logged["text"] and held["logprobs"]["text_offset"] == p["text_offset"], held
        check_echo(server, plain)
        again = complete(server, prompt="Tell me " * 40, max_tokens=2)
        again = complete(server, prompt="Tell me " * 40, max_tokens=2)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16, again["usage"]


def check_echo(server, plain):
    """Log probabilities of a prompt: those that its tokens have as an answer, whole, streamed and alone."""
    whole = complete(server, prompt="Tell me", max_tokens=24, logprobs=2, echo=True)["choices"][0]
    p = whole["logprobs"]
    count = len(p["tokens"]) - 24
    assert whole["text"] == "".join(p["tokens"]) and whole["text"].endswith("Tell me" + plain), whole
    assert p["token_logprobs"][0] is None and p["top_logprobs"][0] is None and len(p["top_logprobs"]) == count + 24
    assert all(v <= 0 for v in p["token_logprobs"][1:]), p
    offset = 0
    for token, at in zip(p["tokens"], p["text_offset"]):
        assert at == offset, p
        offset += len(token)
    alone = complete(server, prompt="Tell me", max_tokens=0, logprobs=2, echo=True)
    assert alone["usage"]["completion_tokens"] == 0, alone["usage"]
    for name, values in alone["choices"][0]["logprobs"].items():
        assert values == p[name][:count], (name, values, p[name])
    # The answer's tokens as the end of a prompt have the chances that they had when they were drawn.
    ids = call(server, "/tokenize", {"model": "talk", "prompt": "Tell me"})[2]["tokens"]
    drawn = complete(server, prompt=ids, max_tokens=1, logprobs=1, logit_bias={"65": 50})["choices"][0]["logprobs"]
    asked = complete(server, prompt=ids + [65], max_tokens=0, logprobs=1, echo=True)["choices"][0]["logprobs"]
    assert asked["tokens"][-1] == drawn["tokens"][0], (asked, drawn)
    assert asked["token_logprobs"][-1] <= drawn["token_logprobs"][0], (asked, drawn)
    body = {"model": "talk", "prompt": ["Tell me", "x"], "max_tokens": 6, "temperature": 0, "logprobs": 2, "echo": True}
    both = call(server, "/v1/completions", body)[2]["choices"]
    streamed = {0: [], 1: []}
    for e in events(server, "/v1/completions", {**body, "stream": True})[:-1]:
        choice = json.loads(e)["choices"][0]
        streamed[choice["index"]] += (choice["logprobs"] or {}).get("token_logprobs", [])
    for i in (0, 1):
        assert streamed[i] == both[i]["logprobs"]["token_logprobs"], (streamed, both)


def talk(server, messages, **members):
    status, _, body = call(server, "/v1/chat/completions",
                           {"model": "talk", "messages": messages, "temperature": 0, "max_tokens": 12, **members})
    assert status == 200, body
    return body


def case_chat():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is the king?"}]
    prompt = "[system] Be brief.\n[user] Who is the king?\n[assistant] "
    with serve() as server:
        ids = call(server, "/tokenize", {"model": "talk", "prompt": prompt, "add_special_tokens": False})[2]["tokens"]
        want = complete(server, prompt=ids, max_tokens=12)
        got = talk(server, messages, logprobs=True, top_logprobs=1)
        choice = got["choices"][0]
        assert choice["message"]["role"] == "assistant" and got["object"] == "chat.completion", got
        assert choice["message"]["content"] == want["choices"][0]["text"], (got, want)
        assert got["usage"]["prompt_tokens"] == len(ids)
        drawn = talk(server, messages, logprobs=True, top_logprobs=20, temperature=1.5, seed=4)["choices"][0]
        for token in drawn["logprobs"]["content"]:
            tops = token["top_logprobs"]
            logs = [t["logprob"] for t in tops]
            assert len(tops) == 20 and logs == sorted(logs, reverse=True), tops
            same = [t for t in tops if t["bytes"] == token["bytes"]]  # special tokens have no bytes
            near = [t for t in same if abs(t["logprob"] - token["logprob"]) < 1e-4]
            assert near or not same or not token["bytes"], token
            assert same or token["logprob"] <= tops[-1]["logprob"] + 1e-4, token
        assert talk(server, messages, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
        shown = choice["logprobs"]["content"]
        assert len(shown) == 12 and bytes(sum((t["bytes"] for t in shown), [])).decode() == choice["message"]["content"]
        # In parts and under the newer name of the role; streamed; with a variable of the template; continued.
        parts = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, messages[1]]
        assert talk(server, parts)["choices"][0]["message"] == choice["message"]
        body = {"model": "talk", "messages": messages, "temperature": 0, "max_tokens": 12, "stream": True}
        found = events(server, "/v1/chat/completions", body)
        deltas = [json.loads(e)["choices"][0] for e in found[:-1]]
        assert found[-1] == "[DONE]" and deltas[0]["delta"]["role"] == "assistant" and deltas[-1]["delta"] == {}
        assert "".join(d["delta"].get("content", "") for d in deltas) == choice["message"]["content"]
        assert all("role" not in d["delta"] for d in deltas[1:])
        loud = talk(server, messages, chat_template_kwargs={"loud": True})
        assert loud["usage"]["prompt_tokens"] > len(ids)
        begun = messages + [{"role": "assistant", "content": "It is"}]
        on = talk(server, begun, continue_final_message=True, add_generation_prompt=False)
        ids = call(server, "/tokenize", {"model": "talk", "prompt": prompt + "It is", "add_special_tokens": False})[2]
        assert on["usage"]["prompt_tokens"] == ids["count"], (on["usage"], ids)
        status, error, _ = error_of(server, "/v1/chat/completions", messages=[{"role": "tool", "content": "x"}])
        assert status == 400 and "begins with a tool" in error["message"], error
        for wrong in ([], "x", [{}], [{"role": "user", "content": 3}],
                      [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]):
            assert error_of(server, "/v1/chat/completions", messages=wrong)[1]["param"] == "messages"


def case_tools():
    """A model that repeats what it is told calls what it is told to: the template ends within a call."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    with serve() as server:
        plain = talk(server, [{"role": "user", "content": "Hello"}], tools=tools)
        assert plain["choices"][0]["message"]["content"] and "tool_calls" not in plain["choices"][0]["message"]
        said = [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]}]
        told = talk(server, [{"role": "user", "content": "Hello"}, *said], tools=tools)
        assert told["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
        for wrong, param in (({"tools": "x"}, "tools"), ({"tools": [{}]}, "tools"),
                             ({"tool_choice": "required"}, "tool_choice"),
                             ({"tools": tools, "tool_choice": "any"}, "tool_choice"),
                             ({"tools": tools * 2}, "tools"),
                             ({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "x"}}},
                              "tool_choice")):
            error = error_of(server, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], **wrong)[1]
            assert error["param"] == param, error
        for text in ("", "{"):  # of a call without any, and of one that was cut off
            said[0]["tool_calls"][0]["function"]["arguments"] = text
            assert talk(server, [{"role": "user", "content": "Hello"}, *said])["choices"], text


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
          "required": ["name", "age", "tags"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}}}
         for name, key in (("weather", "day"), ("time", "zone"))]


class Forms:
    """A model that names the token that ends its texts: answers of a form need one."""
    path = None

    @classmethod
    def serve(cls, *options):
        if cls.path is None:
            cls.path = temporary()
            make_model(cls.path / "talk", end=420)  # <|end|>
        return Server(cls.path, "--threads", "1", *options)


def check_schema(text):
    value = json.loads(text)
    assert list(value) == ["name", "age", "tags"] and isinstance(value["name"], str), value
    assert type(value["age"]) is int and set(value["tags"]) <= {"a", "b"} and len(value["tags"]) <= 3, value


def formed(server, prompt="Tell me", path="/v1/completions", **members):
    """The text of an answer that must have ended by itself."""
    ask = {"model": "talk", "max_tokens": 300, "temperature": 0.7, "seed": 3, **members}
    ask |= {"prompt": prompt} if path == "/v1/completions" else {"messages": [{"role": "user", "content": prompt}]}
    status, _, body = call(server, path, ask)
    assert status == 200, body
    choice = body["choices"][0]
    assert choice["finish_reason"] != "length", choice
    return choice.get("text") if "text" in choice else choice["message"]


def case_forms():
    """Every way to ask for a form, greedy and drawn, whole and streamed; the command line draws the same."""
    schema_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    with Forms.serve() as server:
        text = formed(server, response_format=schema_format)
        check_schema(text)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(SCHEMA, file)
            file.flush()
            said = subprocess.run([TRIREME, "generate", str(Forms.path / "talk"), "--prompt", "Tell me", "--json",
                                   "--max-tokens", "300", "--threads", "1", "--temperature", "0.7", "--seed", "3",
                                   "--json-schema", file.name], check=True, capture_output=True).stdout
        assert json.loads(said)["text"] == text, (said, text)
        for members in ({"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)},
                        {"structured_outputs": {"json": SCHEMA}}):
            assert formed(server, **members) == text, members
        check_schema(formed(server, response_format=schema_format, temperature=0, logit_bias={"420": 5}))
        assert isinstance(json.loads(formed(server, response_format={"type": "json_object"}, temperature=1,
                                            logit_bias={"420": 8})), dict)
        for seed in range(4):
            word = formed(server, guided_choice=["red", "green", "blue"], seed=seed)
            assert word in ("red", "green", "blue"), word
            digits = formed(server, structured_outputs={"regex": "[0-9]{3}-[ab]+!"}, seed=seed)
            assert digits[3] == "-" and digits[:3].isdigit() and set(digits[4:-1]) <= set("ab"), digits
        nested = formed(server, guided_grammar='root ::= "<" root ">" | [xy]', temperature=1)
        assert nested.count("<") == nested.count(">") and nested.strip("<>") in ("x", "y"), nested
        message = formed(server, path="/v1/chat/completions", response_format=schema_format)
        check_schema(message["content"])
        body = {"model": "talk", "prompt": "Tell me", "max_tokens": 300, "temperature": 0.7, "seed": 3, "stream": True,
                "response_format": schema_format, "n": 2}
        texts = {}
        for e in events(server, "/v1/completions", body)[:-1]:
            choice = json.loads(e)["choices"][0]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        assert texts[0] == text and texts[1] != text, texts
        check_schema(texts[1])
        metrics = call(server, "/metrics")[2]
        assert metric(metrics, "trireme_text_masks_total") > 300


def metric(text, name):
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


def case_forms_among_others():
    """Formed, biased and plain texts at once on few pages: each is what it is alone, and some are put back."""
    asks = []
    for i in range(18):
        ask = {"model": "talk", "prompt": f"Story {i} of the sea", "max_tokens": 60, "temperature": 0.8, "seed": i}
        if i % 3 == 0:
            ask["guided_json"] = SCHEMA
        if i % 3 == 1:
            ask |= {"logit_bias": {"420": -100, str(40 + i): 2}, "min_tokens": 10, "logprobs": i % 5}
        asks.append(ask)
    answers = [None] * len(asks)
    with Forms.serve("--max-sequences", "8", "--cache-bytes", "33000") as server:
        def ask(i):
            answers[i] = call(server, "/v1/completions", asks[i])[2]["choices"][0]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asks))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert metric(call(server, "/metrics")[2], "vllm:num_preemptions_total") > 0
    for option in ((), ("--tp", "2"), ("--pp", "2")):
        with Forms.serve(*option) as server:
            for i, one in enumerate(asks):
                alone = call(server, "/v1/completions", one)[2]["choices"][0]
                assert alone["text"] == answers[i]["text"], (option, one, alone, answers[i])


def case_forced_calls():
    """Tools that must be called are, with arguments of their schemas, in the form that the template's models write."""
    named = {"type": "function", "function": {"name": "time"}}
    for marker in (None, "<tool_call>", '"parameters"', "[TOOL_CALLS]"):
        root = temporary()
        make_model(root / "talk", end=420)
        config = {"chat_template": TEMPLATE + ("{# " + marker + " #}" if marker else "")}
        (root / "talk" / "tokenizer_config.json").write_text(json.dumps(config))
        with Server(root, "--threads", "1") as server:
            for choice, names in (("required", {"weather", "time"}), (named, {"time"})):
                ask = {"tools": TOOLS, "tool_choice": choice, "logit_bias": {"420": 6}}
                message = formed(server, path="/v1/chat/completions", **ask)
                calls = message["tool_calls"]
                assert message["content"] is None and calls, message
                for one in calls:
                    key = {"weather": "day", "time": "zone"}[one["function"]["name"]]
                    arguments = json.loads(one["function"]["arguments"])
                    assert one["function"]["name"] in names and list(arguments) == [key], message
                    assert type(arguments[key]) is int, message
                assert choice == "required" or len(calls) == 1, calls
                body = {"model": "talk", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 300,
                        "temperature": 0.7, "seed": 3, "stream": True, **ask}
                found = [json.loads(e)["choices"][0] for e in events(server, "/v1/chat/completions", body)[:-1]]
                streamed = [c for d in found for c in d["delta"].get("tool_calls", [])]
                assert [c["function"] for c in streamed] == [c["function"] for c in calls], (streamed, calls)
                assert found[-1]["finish_reason"] == ("tool_calls" if choice == "required" else "stop"), found[-1]
                if marker is None:
                    both = call(server, "/v1/chat/completions", {**body, "stream": False, "n": 2})[2]["choices"]
                    ids = [c["id"] for one in both for c in one["message"].get("tool_calls", [])]
                    assert len(both) == 2 and ids and len(set(ids)) == len(ids), both
            # Free to call or to answer in a form: one or the other.
            free = formed(server, path="/v1/chat/completions", tools=TOOLS, guided_json=SCHEMA, logit_bias={"420": 6})
            assert "tool_calls" in free or not check_schema(free["content"]), free
        shutil.rmtree(root)


def case_hostile_forms():
    """What is wrong with a form is said at once, and whoever else is served is served meanwhile."""
    deep = {"type": "string"}
    for _ in range(90):
        deep = {"type": "array", "items": deep}
    ambiguous = 'root ::= "a" root "b" | "a" root "c" | "a" root | "a" root "d" | "a"'
    wrong = (({"guided_json": {"type": "no"}}, "guided_json"), ({"guided_json": "{"}, "guided_json"),
             ({"guided_json": deep}, "guided_json"),
             ({"guided_json": {"type": "integer", "minimum": 3}}, "guided_json"),
             ({"guided_regex": "(a"}, "guided_regex"), ({"guided_regex": "[a-z]{10000}" * 200}, "guided_regex"),
             ({"guided_regex": "((((a{1000}){1000}){1000}){1000}){1000}" * 600}, "guided_regex"),
             ({"guided_grammar": "root ::= root"}, "guided_grammar"), ({"guided_choice": []}, "guided_choice"),
             ({"guided_grammar": "root ::= " + " | ".join(f"r{i}" for i in range(30000))}, "guided_grammar"),
             ({"guided_regex": "x" * 600_000}, "guided_regex"),
             ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
             ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
             ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
             ({"response_format": {"type": "json_schema"}}, "response_format"))
    with Forms.serve() as server:
        plain = complete(server, prompt="The king", max_tokens=30)["choices"][0]["text"]
        for members, param in wrong:
            began = time.monotonic()
            status, error, _ = error_of(server, prompt="x", **members)
            assert status == 400 and error["param"] == param, (param, error)
            assert time.monotonic() - began < 60, (param, time.monotonic() - began)
        # One that reads in many ways ends with an error of its own, and others go on.
        failed = []
        thread = threading.Thread(target=lambda: failed.append(
            call(server, "/v1/completions", {"model": "talk", "prompt": "x", "max_tokens": 500, "temperature": 0,
                                             "guided_grammar": ambiguous, "logit_bias": {"420": -100}})))
        thread.start()
        while thread.is_alive():
            assert complete(server, prompt="The king", max_tokens=30)["choices"][0]["text"] == plain
        status, _, body = failed[0]
        assert status == 400 and "grammar" in body["error"]["message"], body
        assert formed(server, guided_choice=["still", "here"]) in ("still", "here")


def case_gguf():
    """A GGUF file alone: weights in blocks, tokenizer and template from the file, tokens as on the command line."""
    root = temporary()
    (root / "small").mkdir()
    file = root / "small" / "any-name.gguf"
    subprocess.run([TRIREME, "quantize", str(Repository.get() / "talk"), "--to", "q8_0", "-o", str(file)], check=True,
                   capture_output=True)
    with Server(root, "--threads", "1") as server:
        out = subprocess.run([TRIREME, "generate", str(file), "--prompt", "The king", "--max-tokens", "12", "--json",
                              "--threads", "1"], check=True, capture_output=True)
        got = complete(server, model="small", prompt="The king", max_tokens=12)["choices"][0]["text"]
        assert got == json.loads(out.stdout)["text"], got
        assert talk(server, [{"role": "user", "content": "x"}], model="small")["choices"][0]["message"]["content"]
    shutil.rmtree(root)


def case_errors():
    with serve() as server:
        for members, param in (({"prompt": "x", "temperature": 3}, "temperature"), ({"prompt": "x", "n": 0}, "n"),
                               ({"prompt": "x", "top_p": "a"}, "top_p"), ({}, "prompt"),
                               ({"prompt": []}, "prompt"), ({"prompt": [[1], "a", {}]}, "prompt"),
                               ({"prompt": "x", "stop": [1]}, "stop"), ({"prompt": "x", "seed": 2**64}, "seed"),
                               ({"prompt": "x", "stop": "y" * 5000}, "stop"),
                               ({"prompt": "x", "stop_token_ids": [1] * 1025}, "stop_token_ids"),
                               ({"prompt": "x", "cache_salt": "y" * 1025}, "cache_salt"),
                               ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
                               ({"prompt": "x", "logit_bias": {"1": 500}}, "logit_bias"),
                               ({"prompt": "x", "logit_bias": {"one": 5}}, "logit_bias"),
                               ({"prompt": "x", "logit_bias": {"01": 5}}, "logit_bias"),
                               ({"prompt": "x", "logprobs": 21}, "logprobs"),
                               ({"prompt": "x", "suffix": "y"}, "suffix"),
                               ({"prompt": "x", "response_format": {"type": "xml"}}, "response_format"),
                               ({"prompt": "x", "guided_regex": "a+"}, "guided_regex"),  # no token that ends it
                               ({"prompt": "x", "best_of": 2, "n": 3}, "best_of"),
                               ({"prompt": ["x"] * 100, "n": 100}, "n"),
                               ({"prompt": "x", "stream_options": {}}, "stream_options")):
            status, error, _ = error_of(server, **members)
            assert status == 400 and error["param"] == param and error["type"] == "invalid_request_error", error
        assert error_of(server, prompt=[424])[0] == 400  # no such token
        assert error_of(server, prompt="a " * 2000)[0] == 400  # longer than the model
        assert error_of(server, prompt="a" * 1_000_000)[0] == 400
        status, error, _ = error_of(server, model="none", prompt="x")
        assert status == 404 and error["code"] == "model_not_found", error
        for body in (b"{", b"[]", b"3", b'{"model": 3}'):
            request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request, timeout=10)
                raise AssertionError(body)
            except urllib.error.HTTPError as e:
                assert e.code == 400 and "error" in json.loads(e.read()), body
        assert call(server, "/v2/models/talk/infer", {"inputs": []})[0] == 501  # decoupled
        assert complete(server, prompt="x", max_tokens=3)["usage"]["completion_tokens"] == 3


def silent_stream(server, path, body, patience=100):
    """Sends a stream's request behind one that holds the only place; what came before that one was over."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=patience)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def case_keep_alive():
    """A stream that waits is sent comments, and then its answer; without the option nothing comes but that."""
    holder = {"model": "talk", "prompt": "x", "max_tokens": LONG, "temperature": 0}
    waiting = 'vllm:num_requests_waiting{model_name="talk",engine="0"}'
    for option, comments in (("20ms", True), ("0s", False)):
        with serve("--max-sequences", "1", "--keep-alive", option) as server:
            want = complete(server, prompt="Once upon", max_tokens=8)["choices"][0]["text"]
            threads = [threading.Thread(target=call, args=(server, "/v1/completions", holder)) for _ in range(24)]
            for t in threads:
                t.start()
            until(lambda: server.metrics()[waiting] >= 12)
            body = {"model": "talk", "prompt": "Once upon", "max_tokens": 8, "temperature": 0, "stream": True}
            status, text = silent_stream(server, "/v1/completions", body)
            parts = text.split("\n\n")
            assert status == 200 and (": keep-alive" in parts) == comments, (option, text)
            data = [p[6:] for p in parts if p.startswith("data: ")]
            assert data[-1] == "[DONE]", text
            assert "".join(json.loads(d)["choices"][0]["text"] for d in data[:-1]) == want
            ask = {"model": "talk", "input": "Once upon", "max_output_tokens": 8, "temperature": 0, "stream": True}
            status, text = silent_stream(server, "/v1/responses", ask)
            assert status == 200 and "response.incomplete" in text, text
            # What fails once comments came is an event; a status says it where none did.
            late = {**body, "prompt": "x"}
            if comments:
                for t in threads:
                    t.join()
                threads = [threading.Thread(target=call, args=(server, "/v1/completions", holder)) for _ in range(24)]
                for t in threads:
                    t.start()
                until(lambda: server.metrics()[waiting] >= 12)
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)
                connection.request("POST", "/v1/completions", json.dumps(late),
                                   {"Content-Type": "application/json", "x-timeout-ms": "100"})
                reply = connection.getresponse()
                text = reply.read().decode()
                assert reply.status == 200 and '"error"' in text, text
            for t in threads:
                t.join()


def case_long_texts_hold_nobody_up():
    """KServe's generate tokenizes long texts apart: another client of the same connections' thread is answered."""
    with serve("--http-threads", "1") as server:
        call(server, "/v2/health/live")
        body = {"text_input": "a " * 3_000_000, "parameters": {"max_tokens": 2}}
        failed = []
        thread = threading.Thread(target=lambda: failed.append(call(server, "/v2/models/talk/generate", body)))
        thread.start()
        answered = 0
        while thread.is_alive():
            assert call(server, "/v2/health/live")[0] == 200
            answered += 1
        status, _, body = failed[0]
        assert status == 400 and "tokens" in body["error"], body
        assert answered > 5, f"{answered} calls while the text was tokenized: the thread waited for that"
        assert call(server, "/v2/models/talk/generate", {"text_input": "a " * 100_000})[0] == 400
        short = {"text_input": "The king", "parameters": {"max_tokens": 4, "temperature": 0}}
        assert call(server, "/v2/models/talk/generate", short)[2]["text_output"]


def case_too_many_wait():
    with serve("--max-queue", "2", "--max-sequences", "1") as server:
        results = []

        def ask():
            results.append(call(server, "/v1/completions", {"model": "talk", "prompt": "x", "max_tokens": LONG}))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        codes = [status for status, _, _ in results]
        assert 200 in codes and 429 in codes and set(codes) == {200, 429}, codes
        assert all(head["Retry-After"] for status, head, _ in results if status == 429)
        late = call(server, "/v1/completions", {"model": "talk", "prompt": "x", "max_tokens": 2},
                    {"x-timeout-ms": "60000", "x-priority": "1"})
        assert late[0] == 200, late
        assert call(server, "/v1/completions", {"model": "talk", "prompt": "x"}, {"x-priority": "a"})[0] == 400
        status, error, _ = error_of(server, prompt="x", n=3, max_tokens=2)  # two may wait: it never fits
        assert status == 400 and "3 answers" in error["message"], error
        assert len(complete(server, prompt="x", n=2, max_tokens=2)["choices"]) == 2


def case_pages_run_out():
    prompts = [f"Chapter {i} of a long book about the sea and the king" for i in range(12)]
    with serve() as server:
        want = [complete(server, prompt=p, max_tokens=120)["choices"][0]["text"] for p in prompts]
    with serve("--cache-bytes", "100KiB") as server:  # 25 pages of 4 KiB
        got = [None] * len(prompts)

        def ask(i):
            got[i] = complete(server, prompt=prompts[i], max_tokens=120)["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert got == want
        metrics = server.metrics()
        label = '{model_name="talk",engine="0"}'
        assert metrics["vllm:num_preemptions_total" + label] > 0
        assert metrics["vllm:kv_cache_usage_perc" + label] == 0
        assert metrics["vllm:generation_tokens_total" + label] >= 12 * 120
        assert metrics['vllm:request_success_total{model_name="talk",engine="0",finished_reason="length"}'] == 12
        assert metrics["vllm:time_to_first_token_seconds_count" + label] == 12
        assert metrics['nv_inference_request_success{model="talk",version="1"}'] == 12
        # Utilisation: of the steps, not of each of the texts that share them.
        busy = metrics['trireme_instance_busy_seconds_total{model="talk",version="1",instance="0"}']
        assert 0 < busy < 1.5e-6 * metrics["trireme_text_busy_us_total" + label] + 0.1, metrics
        status, error, _ = error_of(server, prompt="x", max_tokens=500)  # pages that there are not: no use to wait
        assert status == 400 and "pages" in error["message"], error
        # Who does not say how long an answer may be is given what there are pages for.
        assert call(server, "/v1/models/talk")[2]["max_model_len"] == 400
        usage = talk(server, [{"role": "user", "content": "Hello"}], ignore_eos=True, max_tokens=None)["usage"]
        assert usage["total_tokens"] == 400, usage


def case_clients_vanish():
    with serve("--max-sequences", "64") as server:
        body = json.dumps({"model": "talk", "prompt": "x", "max_tokens": LONG, "ignore_eos": True, "stream": True})
        for _ in range(5):
            connections = []
            for _ in range(40):
                c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                connections.append(c)
            connections[0].getresponse().read(100)
            for c in connections:
                c.close()
        label = '{model_name="talk",engine="0"}'
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        until(lambda: not any(server.metrics()[f"vllm:{name}{label}"] for name in names))
        m = server.metrics()
        # Only some were answered to the end, and the server is as before.
        assert m['vllm:request_success_total{model_name="talk",engine="0",finished_reason="abort"}'] > 100
        assert complete(server, prompt="x", max_tokens=3)["usage"]["completion_tokens"] == 3


def case_drain():
    with serve() as server:
        body = json.dumps({"model": "talk", "prompt": "x", "max_tokens": LONG, "ignore_eos": True, "stream": True})
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = c.getresponse()
        reply.read(50)
        server.process.send_signal(signal.SIGTERM)
        assert b"[DONE]" in reply.read()  # what was begun is answered
        assert server.process.wait(30) == 0


def case_keys():
    secret = "Bearer sk-test"
    with serve("--restrict", f"inference:authorization={secret}") as server:
        body = {"model": "talk", "prompt": "x", "max_tokens": 2}
        assert call(server, "/v1/completions", body)[0] == 401
        assert call(server, "/v1/completions", body, {"Authorization": "Bearer sk-tesx"})[0] == 401
        assert call(server, "/v1/completions", body, {"Authorization": secret})[0] == 200
        assert call(server, "/tokenize", {"model": "talk", "prompt": "x"})[0] == 401
        assert call(server, "/v1/models")[0] == 200


def case_embeddings():
    from _serving import encoder_dir, link_tree
    root = temporary()
    link_tree(encoder_dir(), root / "minilm")
    texts = [f"sentence number {i} about the sea" for i in range(40)]  # more than a batch
    with Server(root, "--warm-up", "none") as server:
        status, _, body = call(server, "/v1/embeddings", {"model": "minilm", "input": texts})
        assert status == 200 and [d["index"] for d in body["data"]] == list(range(40)), body
        assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 40 * 6, body["usage"]
        plain = [d["embedding"] for d in body["data"]]
        packed = call(server, "/v1/embeddings", {"model": "minilm", "input": texts[7], "encoding_format": "base64"})[2]
        bits = base64.b64decode(packed["data"][0]["embedding"])
        assert list(struct.unpack(f"<{len(bits) // 4}f", bits)) == [struct.unpack("<f", struct.pack("<f", v))[0]
                                                                     for v in plain[7]]
        cut = call(server, "/v1/embeddings", {"model": "minilm", "input": texts[7], "dimensions": 64})[2]
        short = cut["data"][0]["embedding"]
        assert len(short) == 64 and abs(sum(v * v for v in short) - 1) < 1e-5
        assert call(server, "/v1/completions", {"model": "minilm", "prompt": "x"})[0] == 404
        for members, param in (({}, "input"), ({"input": []}, "input"), ({"input": [1, 2]}, "input"),
                               ({"input": ""}, "input"), ({"input": "x", "encoding_format": "x"}, "encoding_format"),
                               ({"input": "x", "dimensions": 0}, "dimensions"),
                               ({"input": "x", "dimensions": len(plain[0]) + 1}, "dimensions")):
            status, error, _ = error_of(server, "/v1/embeddings", model="minilm", **members)
            assert status == 400 and error["param"] == param, (members, error)
        assert error_of(server, "/v1/embeddings", model="none", input="x")[0] == 404
    shutil.rmtree(root)


def case_long_prompts_beside_short_ones():
    with serve("--http-threads", "1") as server:
        long = threading.Thread(target=lambda: [error_of(server, prompt="a b" * 60_000) for _ in range(4)])
        long.start()
        for _ in range(5):
            assert complete(server, prompt="x", max_tokens=2)["usage"]["completion_tokens"] == 2
        long.join()


def case_load():
    with serve() as server, tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.jsonl"
        trace.write_text("".join(json.dumps({"timestamp": 20 * i, "input_length": 40 + i, "output_length": 5 + i % 3,
                                             "hash_ids": [0]}) + "\n" for i in range(30)))
        for more, requests in ((["--concurrency", "4", "--requests", "30", "--prompt-tokens", "50", "--answer-tokens",
                                 "6", "--shared-tokens", "32"], 30), (["--trace", trace], 30)):
            out = Path(scratch) / "result.json"
            done = subprocess.run([TRIREME, "load", server.url, "--model", "talk", "--completions", "--stream",
                                   "--warmup", "0s", "--json", out, "--slo", "first_p99=30s", *map(str, more)],
                                  capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            run = json.loads(out.read_text())["runs"][0]
            tokens = 30 * 6 if "--trace" not in more else sum(5 + i % 3 for i in range(30))
            label = '{model_name="talk",engine="0"}'
            assert server.metrics()["vllm:generation_tokens_total" + label] >= tokens, run
            assert run["succeeded"] == requests, run
        assert server.metrics()["vllm:prefix_cache_hits_total" + label] > 30 * 16
    with Forms.serve() as server:
        words = [TRIREME, "load", server.url, "--model", "talk", "--completions", "--requests", "8", "--warmup", "0s",
                 "--answer-tokens", "9", "--members"]
        members = {"guided_regex": "[ab]*", "temperature": 0.5}
        done = subprocess.run([*words, json.dumps(members)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert metric(call(server, "/metrics")[2], "trireme_text_masks_total") == 8 * 9
        for wrong in ("[1]", "{", '{"prompt": "x"}'):
            done = subprocess.run([*words, wrong], capture_output=True, text=True)
            assert done.returncode == 2 and "--members" in done.stderr, done.stderr


def case_beside_a_classic_model():
    from _serving import add_simple
    root = temporary()
    shutil.copytree(Repository.get() / "talk", root / "talk")
    add_simple(root)
    with Server(root) as server:
        assert [m["id"] for m in call(server, "/v1/models")[2]["data"]] == ["talk"]
        index = call(server, "/v2/repository/index", {})[2]
        assert {m["name"]: m["state"] for m in index} == {"simple": "READY", "talk": "READY"}, index
        assert error_of(server, model="simple", prompt="x")[0] == 404
        config = call(server, "/v2/models/talk/config")[2]
        assert config["model_transaction_policy"]["decoupled"] is True, config
        stats = call(server, "/v2/models/talk/stats")[2]["model_stats"][0]
        complete(server, prompt="x", max_tokens=4)
        after = call(server, "/v2/models/talk/stats")[2]["model_stats"][0]
        assert after["inference_count"] == stats["inference_count"] + 1, after
    # A config that names inputs makes it a model of tensors, as before.
    (root / "talk/config.pbtxt").write_text(
        'input [{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }]')
    with Server(root) as server:
        assert call(server, "/v1/models")[2]["data"] == []
        outputs = call(server, "/v2/models/talk")[2]["outputs"]
        assert outputs[0]["name"] == "logits", outputs
    shutil.rmtree(root)


if __name__ == "__main__":
    os.environ.setdefault("TRIREME_SHARED_DATA", str(ROOT / "shared/data"))
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
