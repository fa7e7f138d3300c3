# The official OpenAI client against the server: every answer and chunk passes its types, errors are its errors.
import asyncio
import json
import math
import shutil

import openai
import pydantic
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from _serving import Server, encoder_dir, link_tree, run_cases, temporary
from serve_text import call, make_model


class Host:
    """One server with a language model and an encoder for all cases."""
    server = None

    @classmethod
    def get(cls):
        if cls.server is None:
            cls.root = temporary()
            make_model(cls.root / "talk")
            make_model(cls.root / "formed", end=420)
            link_tree(encoder_dir(), cls.root / "minilm")
            cls.server = Server(cls.root, "--threads", "1", "--warm-up", "none", "--max-queue", "8")
        return cls.server

    @classmethod
    def client(cls, kind=openai.OpenAI, **options):
        return kind(base_url=cls.get().url + "/v1", api_key="none", **options)


def strict(kind, value):
    """The value again, every member of it checked against the client's own types."""
    return kind.model_validate(value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value)


def case_models():
    models = Host.client().models.list().data
    assert sorted(m.id for m in models) == ["formed", "talk"], models
    strict(Model, Host.client().models.retrieve("talk"))


def case_completions():
    client = Host.client()
    ask = {"model": "talk", "prompt": "Once upon", "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**ask, logprobs=1)
    strict(Completion, whole)
    strict(Completion, call(Host.get(), "/v1/completions", {**ask, "n": 2, "logprobs": 1})[2])
    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        strict(Completion, {**chunk.model_dump(mode="json"), "usage": chunk.usage and chunk.usage.model_dump()}
               if all(c.finish_reason for c in chunk.choices) else chunk_with_reason(chunk))
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    assert text == whole.choices[0].text, (text, whole)
    assert chunks[-1].usage.completion_tokens == 20 == whole.usage.completion_tokens


def chunk_with_reason(chunk):
    """The client's type of a chunk is that of a whole completion, which always has a reason."""
    value = chunk.model_dump(mode="json")
    for choice in value["choices"]:
        assert choice["finish_reason"] is None
        choice["finish_reason"] = "stop"
    return value


def case_chat():
    client = Host.client()
    ask = {"model": "talk", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**ask, logprobs=True, n=2)
    strict(ChatCompletion, whole)
    strict(ChatCompletion, call(Host.get(), "/v1/chat/completions", {**ask, "logprobs": True, "top_logprobs": 1})[2])
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        strict(ChatCompletionChunk, chunk)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content == whole.choices[1].message.content
    assert chunks[-1].usage.completion_tokens == 16


TOOL = {"type": "function", "name": "weather", "description": "of a day", "strict": True,
        "parameters": {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"],
                       "additionalProperties": False}}


def stream_of(client, **ask):
    """The events of a streamed response, each checked; its last response."""
    found = []
    with client.responses.create(**ask, stream=True) as stream:
        for event in stream:
            found.append(strict(type(event), event))
    assert [e.sequence_number for e in found] == list(range(len(found))), found
    assert [e.type for e in found[:2]] == ["response.created", "response.in_progress"], found[:2]
    assert found[-1].type in ("response.completed", "response.incomplete"), found[-1]
    return found, found[-1].response


def without_ids(response):
    value = response.model_dump(mode="json", exclude={"id", "created_at", "usage"})
    for item in value["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return value


def case_responses():
    client = Host.client()
    ask = {"model": "talk", "input": "Who?", "max_output_tokens": 16, "temperature": 0, "instructions": "Be brief."}
    whole = strict(Response, client.responses.create(**ask))
    chat = client.chat.completions.create(model="talk", max_tokens=16, temperature=0, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}])
    assert whole.output_text == chat.choices[0].message.content, (whole, chat)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens", whole
    assert whole.usage.output_tokens == 16 and whole.usage.input_tokens == chat.usage.prompt_tokens
    assert whole.instructions == "Be brief." and whole.model_dump()["store"] is True
    events, last = stream_of(client, **ask)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert without_ids(last) == without_ids(whole), (last, whole)
    done = {e.type: e for e in events}
    assert done["response.output_text.done"].text == done["response.content_part.done"].part.text == whole.output_text
    assert done["response.output_item.done"].item.content[0].text == whole.output_text
    # Items of a conversation are the messages of a chat.
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Me."}]},
             {"role": "user", "content": "Why?"}]
    talk = client.responses.create(**{**ask, "input": items})
    same = client.chat.completions.create(model="talk", max_tokens=16, temperature=0, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Me."}, {"role": "user", "content": "Why?"}])
    assert talk.output_text == same.choices[0].message.content and talk.usage.input_tokens == same.usage.prompt_tokens
    listed = client.responses.create(**ask, top_logprobs=3, include=["message.output_text.logprobs"])
    chances = listed.output[0].content[0].logprobs
    assert len(chances) == 16 and all(len(c.top_logprobs) == 3 for c in chances), chances
    assert listed.output_text == whole.output_text
    beside = client.responses.create(**ask, top_logprobs=1, tools=[TOOL])  # what may be a call is held back
    assert len(beside.output[0].content[0].logprobs) == beside.usage.output_tokens, beside


def case_kept_responses():
    client = Host.client(max_retries=0)
    ask = {"model": "talk", "max_output_tokens": 16, "temperature": 0}
    first = client.responses.create(**ask, input="Who?", instructions="Be brief.")
    again = strict(Response, client.responses.retrieve(first.id))
    assert again.model_dump() == first.model_dump(), (again, first)
    # What follows knows what was asked and answered, but not the instructions.
    second = client.responses.create(**ask, input=[{"role": "user", "content": "Why?"}], previous_response_id=first.id)
    told = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "Why?"}]
    chat = client.chat.completions.create(model="talk", max_tokens=16, temperature=0, messages=told)
    assert second.output_text == chat.choices[0].message.content and second.previous_response_id == first.id
    events, third = stream_of(client, **ask, input="And?", previous_response_id=second.id)
    told += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "And?"}]
    chat = client.chat.completions.create(model="talk", max_tokens=16, temperature=0, messages=told)
    assert third.output_text == chat.choices[0].message.content and third.usage.input_tokens == chat.usage.prompt_tokens
    assert without_ids(client.responses.retrieve(third.id)) == without_ids(third)
    items = list(client.responses.input_items.list(third.id, order="asc", limit=2))  # the client asks for all pages
    assert [i.content[0].text for i in items] == [m["content"] for m in told], items
    assert [i.role for i in items] == [m["role"] for m in told], items
    newest = client.responses.input_items.list(third.id, limit=1)
    assert newest.data[0].content[0].text == "And?" and newest.has_more, newest
    # Calls of functions go on, too.
    called = client.responses.create(model="formed", input="Tell me", tools=[TOOL], tool_choice="required",
                                     max_output_tokens=200, temperature=0.7, parallel_tool_calls=False,
                                     extra_body={"seed": 3, "logit_bias": {"420": 6}})
    output = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "rain"}
    went_on = client.responses.create(model="formed", input=[output], previous_response_id=called.id, tools=[TOOL],
                                      max_output_tokens=8)
    assert [i.type for i in client.responses.input_items.list(went_on.id, order="asc")] == [
        "message", "function_call", "function_call_output"]
    client.responses.delete(second.id)
    unkept = client.responses.create(**ask, input="Who?", store=False)
    assert unkept.model_dump()["store"] is False
    for gone in (second.id, unkept.id, "resp_none", first.id + "x"):
        for act in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            try:
                act(gone)
                raise AssertionError((gone, act))
            except openai.NotFoundError:
                pass
        try:
            client.responses.create(**ask, input="x", previous_response_id=gone)
            raise AssertionError(gone)
        except openai.BadRequestError as error:
            assert error.param == "previous_response_id", error
    assert client.responses.retrieve(third.id).output_text == third.output_text  # what went on from it stays


def case_kept_responses_of_tenants():
    with Server(Host.root, "--threads", "1", "--warm-up", "none", "--tenant-by", "header:x-tenant",
                "--responses-kept", "2", "--load-model", "talk", "--model-control", "explicit") as server:
        def client(tenant):
            return openai.OpenAI(base_url=server.url + "/v1", api_key="none", default_headers={"x-tenant": tenant},
                                 max_retries=0)

        def create(tenant, **members):
            return client(tenant).responses.create(model="talk", input="Who?", max_output_tokens=4, **members)

        a, b = create("a"), create("b")
        assert client("a").responses.retrieve(a.id).id == a.id
        for act in (client("b").responses.retrieve, client("b").responses.delete):
            try:
                act(a.id)
                raise AssertionError("another tenant's")
            except openai.NotFoundError:
                pass
        try:
            create("b", previous_response_id=a.id)
            raise AssertionError("another tenant's")
        except openai.BadRequestError as error:
            assert error.param == "previous_response_id", error
        newer = create("a")  # there is room for two
        assert client("a").responses.retrieve(newer.id).id == newer.id
        found = []
        for tenant, one in (("a", a), ("b", b)):
            try:
                found.append(client(tenant).responses.retrieve(one.id).id)
            except openai.NotFoundError:
                pass
        assert len(found) == 1, found
    with Server(Host.root, "--threads", "1", "--warm-up", "none", "--responses-kept", "0", "--load-model", "talk",
                "--model-control", "explicit") as server:
        plain = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        answer = plain.responses.create(model="talk", input="Who?", max_output_tokens=4)
        assert answer.model_dump()["store"] is False
        try:
            plain.responses.create(model="talk", input="x", previous_response_id=answer.id)
            raise AssertionError("none is kept")
        except openai.APIStatusError as error:
            assert error.param == "previous_response_id", error


def case_responses_of_forms_and_calls():
    client = Host.client()
    ask = {"model": "formed", "input": "Tell me", "max_output_tokens": 200, "temperature": 0.7,
           "extra_body": {"seed": 3, "logit_bias": {"420": 6}}}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "count", "schema": schema, "strict": True}}
    whole = strict(Response, client.responses.create(**ask, text=text))
    assert list(json.loads(whole.output_text)) == ["n"] and whole.status == "completed", whole
    for choice in ("required", {"type": "function", "name": "weather"}):
        called = strict(Response, client.responses.create(**ask, tools=[TOOL], tool_choice=choice,
                                                          parallel_tool_calls=False))
        call_item, = called.output
        assert call_item.type == "function_call" and call_item.name == "weather", called
        assert type(json.loads(call_item.arguments)["day"]) is int, call_item
        events, last = stream_of(client, **ask, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
        assert without_ids(last) == without_ids(called), (last, called)
        types = [e.type for e in events]
        assert types[2:-1] == ["response.output_item.added", "response.function_call_arguments.delta",
                               "response.function_call_arguments.done", "response.output_item.done"], types
    # What was called and what came of it go on in the next question.
    items = [{"role": "user", "content": "Tell me"},
             {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"day": 3}'},
             {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"day": 4}'},
             {"type": "function_call_output", "call_id": "c1", "output": "rain"}]
    assert client.responses.create(**{**ask, "input": items}, tools=[TOOL]).output_text is not None
    # The client's own helper, which reads the answer by a schema.
    parsed = client.responses.parse(model="formed", input="Tell me", max_output_tokens=200, temperature=0.7,
                                    text_format=Count, extra_body=ask["extra_body"])
    assert isinstance(parsed.output_parsed, Count), parsed


class Count(pydantic.BaseModel):
    n: int


def case_chat_of_forms():
    """The client's own helper with a pydantic model."""
    parsed = Host.client().chat.completions.parse(
        model="formed", max_tokens=200, temperature=0.7, seed=3, response_format=Count, logit_bias={"420": 6},
        messages=[{"role": "user", "content": "Tell me"}])
    assert isinstance(parsed.choices[0].message.parsed, Count), parsed


def case_responses_errors():
    client = Host.client(max_retries=0)
    for members, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": []}, "input"),
                           ({"background": True}, "background"), ({"max_output_tokens": 0}, "max_output_tokens"),
                           ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
                           ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
                           ({"tools": [{"type": "web_search"}]}, "tools"), ({"truncation": "auto"}, "truncation"),
                           ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
                           ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}},
                            "text"), ({"temperature": 9}, "temperature")):
        try:
            client.responses.create(**{"model": "formed", "input": "x", **members})
            raise AssertionError(members)
        except openai.BadRequestError as error:
            assert error.param == param, (members, error)
    try:
        client.responses.create(model="none", input="x")
        raise AssertionError("a model that is not there")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"


def case_embeddings():
    client = Host.client()
    many = client.embeddings.create(model="minilm", input=["a sentence", "another one"])  # in base64
    strict(CreateEmbeddingResponse, many)
    plain = client.embeddings.create(model="minilm", input="a sentence", encoding_format="float")
    assert len(plain.data[0].embedding) == 384
    assert max(abs(a - b) for a, b in zip(plain.data[0].embedding, many.data[0].embedding)) < 1e-6


def vector(text):
    return Host.client().embeddings.create(model="minilm", input=text, encoding_format="float").data[0].embedding


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def case_rerank_and_score():
    """By the cosine of embeddings, in the shapes of Jina, Cohere and vLLM."""
    server = Host.get()
    query = "Who rules the sea?"
    documents = ["A cake of apples", "The king of the ocean", "Oceans have rulers", "Taxes are due in May"]
    want = [cosine(vector(query), vector(d)) for d in documents]
    order = sorted(range(4), key=lambda i: -want[i])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        status, _, body = call(server, path, {"model": "minilm", "query": query, "documents": documents})
        assert status == 200, body
        assert [r["index"] for r in body["results"]] == order and order[-1] in (0, 3), body
        for r in body["results"]:
            assert abs(r["relevance_score"] - want[r["index"]]) < 1e-5, (r, want)
            assert r["document"] == {"text": documents[r["index"]]}, r
        assert body["model"] == "minilm" and body["id"] and body["usage"]["total_tokens"] > 20, body
    best = call(server, "/v1/rerank", {"model": "minilm", "query": query, "top_n": 2, "return_documents": False,
                                       "documents": [{"text": d} for d in documents]})[2]["results"]
    assert [r["index"] for r in best] == order[:2] and all(set(r) == {"index", "relevance_score"} for r in best), best
    many = call(server, "/v1/rerank", {"model": "minilm", "query": query, "documents": documents * 30})[2]["results"]
    assert len(many) == 120 and [r["index"] % 4 for r in many] == [i for i in order for _ in range(30)]
    one = call(server, "/v1/score", {"model": "minilm", "text_1": query, "text_2": documents})[2]
    assert [d["index"] for d in one["data"]] == [0, 1, 2, 3] and one["object"] == "list", one
    assert max(abs(d["score"] - w) for d, w in zip(one["data"], want)) < 1e-5, (one, want)
    pairs = call(server, "/score", {"model": "minilm", "text_1": documents, "text_2": documents[::-1]})[2]["data"]
    for i, d in enumerate(pairs):
        assert abs(d["score"] - cosine(vector(documents[i]), vector(documents[3 - i]))) < 1e-5
    same = call(server, "/score", {"model": "minilm", "text_1": query, "text_2": query})[2]["data"]
    assert len(same) == 1 and abs(same[0]["score"] - 1) < 1e-6, same
    for path, members, param in (
            ("/v1/rerank", {"query": query}, "documents"), ("/v1/rerank", {"documents": documents}, "query"),
            ("/v1/rerank", {"query": query, "documents": []}, "documents"),
            ("/v1/rerank", {"query": query, "documents": [3]}, "documents"),
            ("/v1/rerank", {"query": query, "documents": documents, "top_n": -1}, "top_n"),
            ("/v1/score", {"text_1": documents[:2], "text_2": documents}, "text_2"),
            ("/v1/score", {"text_1": [], "text_2": query}, "text_1"), ("/v1/score", {"text_1": "x"}, "text_2")):
        status, _, body = call(server, path, {"model": "minilm", **members})
        assert status == 400 and body["error"]["param"] == param, (members, body)
    for model in ("none", "talk"):
        status, _, body = call(server, "/v1/score", {"model": model, "text_1": "x", "text_2": "y"})
        assert status == 404 and body["error"]["code"] == "model_not_found", body
    assert call(server, "/rerank")[0] == 405


def raises(kind, **ask):
    try:
        Host.client(max_retries=0).completions.create(**{"model": "talk", "prompt": "x", **ask})
    except openai.APIStatusError as error:
        assert isinstance(error, kind), error
        return error
    raise AssertionError(f"no {kind}")


def case_errors():
    assert raises(openai.NotFoundError, model="none").code == "model_not_found"
    assert raises(openai.BadRequestError, temperature=9).param == "temperature"
    assert raises(openai.BadRequestError, prompt=[999999]).type == "invalid_request_error"


def case_many_at_once_are_as_alone():
    """More than may wait: the client's retries after 429 get every answer, and each is as alone."""
    prompts = [f"Story number {i} of the sea" for i in range(24)]

    async def ask_all():
        client = Host.client(openai.AsyncOpenAI, max_retries=50)
        asks = [client.completions.create(model="talk", prompt=p, max_tokens=30, temperature=0.7, seed=i)
                for i, p in enumerate(prompts)]
        return [r.choices[0].text for r in await asyncio.gather(*asks)]

    got = asyncio.run(ask_all())
    client = Host.client()
    for i, p in enumerate(prompts):
        alone = client.completions.create(model="talk", prompt=p, max_tokens=30, temperature=0.7, seed=i)
        assert got[i] == alone.choices[0].text, i


def case_zz_stop():
    assert Host.get().stop() == 0
    shutil.rmtree(Host.root)


if __name__ == "__main__":
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
