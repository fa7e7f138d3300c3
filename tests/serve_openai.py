# The official OpenAI client against the server: every answer and chunk passes its types, errors are its errors.
import asyncio
import shutil

import openai
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

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
            link_tree(encoder_dir(), cls.root / "minilm")
            cls.server = Server(cls.root, "--threads", "1", "--warm-up", "none", "--max-queue", "8")
        return cls.server

    @classmethod
    def client(cls, kind=openai.OpenAI, **options):
        return kind(base_url=cls.get().url + "/v1", api_key="none", **options)


def strict(kind, value):
    """The value again, every member of it checked against the client's own types."""
    return kind.model_validate(value.model_dump(mode="json") if hasattr(value, "model_dump") else value)


def case_models():
    models = Host.client().models.list().data
    assert [m.id for m in models] == ["talk"], models
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


def case_embeddings():
    client = Host.client()
    many = client.embeddings.create(model="minilm", input=["a sentence", "another one"])  # in base64
    strict(CreateEmbeddingResponse, many)
    plain = client.embeddings.create(model="minilm", input="a sentence", encoding_format="float")
    assert len(plain.data[0].embedding) == 384
    assert max(abs(a - b) for a, b in zip(plain.data[0].embedding, many.data[0].embedding)) < 1e-6


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
