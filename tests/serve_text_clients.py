# LangChain's and LiteLLM's clients against the server: texts, streams, tools, forms, embeddings, and errors as theirs.
# tier: all
# timeout: 300
# `./dev test --all` installs them below .venv; without them each case is skipped.
import asyncio
import os
import sys
import warnings
from pathlib import Path

from _serving import ROOT, Server, Skip, encoder_dir, link_tree, run_cases, temporary
from serve_text import make_model

HOME = Path(os.environ.get("TRIREME_TEXT_CLIENTS", ROOT / ".venv" / "text_clients"))
sys.path.insert(0, str(HOME))  # their pins, not those of the other journeys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network when it is imported
os.environ["LANGSMITH_TRACING"] = "false"
KEY = "sk-of-the-test"
ASK = "Who sails the sea?"
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "of a day", "parameters": {
        "type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"],
        "additionalProperties": False}}}
COUNT = {"title": "count", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
         "additionalProperties": False}
SHORT = {"logit_bias": {"420": 6}}  # the end of a text, which a model of random weights else seldom finds


class Host:
    """One server with two language models and an encoder; callers show a key."""
    server = None

    @classmethod
    def url(cls):
        if cls.server is None:
            root = temporary()
            make_model(root / "talk")
            make_model(root / "formed", end=420)
            link_tree(encoder_dir(), root / "minilm")
            cls.server = Server(root, "--threads", "1", "--warm-up", "none", "--max-queue", "8", "--restrict",
                                f"inference:authorization=Bearer {KEY}")
        return cls.server.url + "/v1"


def langchain():
    try:
        import langchain_openai
    except ImportError as error:
        raise Skip(f"LangChain's client is not installed ({error}; ./dev test --all installs it)") from error
    return langchain_openai


def litellm():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm as module
    except ImportError as error:
        raise Skip(f"LiteLLM is not installed ({error}; ./dev test --all installs it)") from error
    module.telemetry = False
    module.suppress_debug_info = True
    return module


def chat(**options):
    chosen = {"model": "talk", "temperature": 0, "max_tokens": 16, "max_retries": 0, **options}
    return langchain().ChatOpenAI(base_url=Host.url(), api_key=KEY, **chosen)


def case_langchain_chat():
    whole = chat().invoke(ASK)
    assert whole.content and whole.usage_metadata["output_tokens"] == 16, whole
    assert whole.response_metadata["finish_reason"] == "length", whole
    chunks = list(chat(stream_usage=True).stream(ASK))
    assert len(chunks) > 8 and "".join(c.content for c in chunks) == whole.content, chunks
    assert sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata) == 16, chunks
    turns = [("system", "Be brief."), ("human", "Who?"), ("ai", "Me."), ("human", "Why?")]
    assert chat().invoke(turns).usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"]
    chances = chat(logprobs=True, top_logprobs=2).invoke(ASK).response_metadata["logprobs"]["content"]
    assert len(chances) == 16 and all(len(c["top_logprobs"]) == 2 for c in chances), chances

    async def many():
        return await asyncio.gather(*(chat(max_retries=8).ainvoke(ASK) for _ in range(12)))
    assert [m.content for m in asyncio.run(many())] == [whole.content] * 12
    assert [m.content for m in chat(max_retries=8).batch([ASK] * 4)] == [whole.content] * 4


def case_langchain_responses():
    whole = chat().invoke(ASK)
    through = chat(use_responses_api=True)
    answer = through.invoke(ASK)
    assert answer.text == whole.content and answer.usage_metadata["output_tokens"] == 16, answer
    assert "".join(c.text for c in through.stream(ASK)) == whole.content


def case_langchain_forms_and_tools():
    formed = {"model": "formed", "temperature": 0.7, "seed": 3, "max_tokens": 200, **SHORT}
    for method in ("json_schema", "function_calling"):
        found = chat(**formed).with_structured_output(COUNT, method=method).invoke("Tell me")
        assert list(found) == ["n"] and type(found["n"]) is int, (method, found)
    called = chat(**formed).bind_tools([WEATHER], tool_choice="weather").invoke("Tell me")
    call, = called.tool_calls
    assert call["name"] == "weather" and type(call["args"]["day"]) is int and call["id"], called
    streamed = None
    for chunk in chat(**formed).bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False).stream("Go"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls and type(streamed.tool_calls[0]["args"]["day"]) is int, streamed
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    turns = [HumanMessage("Tell me"), AIMessage("", tool_calls=[call]), ToolMessage("rain", tool_call_id=call["id"])]
    assert chat(**{**formed, "seed": 4}).bind_tools([WEATHER]).invoke(turns).response_metadata["model_name"] == "formed"


def case_langchain_texts_and_embeddings():
    told = langchain().OpenAI(base_url=Host.url(), api_key=KEY, model="talk", temperature=0, max_tokens=12)
    whole = told.invoke("Once upon")
    assert whole and "".join(told.stream("Once upon")) == whole
    assert told.generate(["Once upon"] * 3).generations[2][0].text == whole
    vectors = langchain().OpenAIEmbeddings(base_url=Host.url(), api_key=KEY, model="minilm",
                                           check_embedding_ctx_length=False)
    rows = vectors.embed_documents(["a sea", "a ship", "a sea"])
    assert len(rows) == 3 and len(rows[0]) == 384 and rows[0] == rows[2] != rows[1]
    assert vectors.embed_query("a ship") == rows[1]


def case_langchain_errors():
    from openai import AuthenticationError, BadRequestError, NotFoundError
    for options, wanted in (({"model": "none"}, NotFoundError), ({"temperature": 9}, BadRequestError),
                            ({"top_p": 3}, BadRequestError)):
        try:
            chat(**options).invoke(ASK)
        except wanted:
            continue
        raise AssertionError(f"no {wanted.__name__} for {options}")
    try:
        langchain().ChatOpenAI(base_url=Host.url(), api_key="sk-wrong", model="talk", max_retries=0).invoke(ASK)
    except AuthenticationError:
        return
    raise AssertionError("a wrong key was let in")


def lite(provider="openai", model="talk", **options):
    chosen = {"temperature": 0, "max_tokens": 16, "num_retries": 0, **options}
    return {"model": f"{provider}/{model}", "api_base": Host.url(), "api_key": KEY, **chosen}


def case_litellm_chat():
    messages = [{"role": "user", "content": ASK}]
    wholes = [litellm().completion(messages=messages, **lite(provider)) for provider in ("openai", "hosted_vllm")]
    text = wholes[0].choices[0].message.content
    assert text and [w.choices[0].message.content for w in wholes] == [text, text], wholes
    assert wholes[0].usage.completion_tokens == 16 and wholes[0].choices[0].finish_reason == "length", wholes[0]
    usage = {"stream_options": {"include_usage": True}}
    chunks = list(litellm().completion(messages=messages, stream=True, **usage, **lite()))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert [c.usage.completion_tokens for c in chunks if getattr(c, "usage", None)] == [16], chunks[-2:]

    async def many():
        asks = (litellm().acompletion(messages=messages, **lite(num_retries=8)) for _ in range(6))
        return await asyncio.gather(*asks)
    assert [m.choices[0].message.content for m in asyncio.run(many())] == [text] * 6
    plain = litellm().text_completion(prompt="Once upon", **lite("text-completion-openai"))
    assert plain.choices[0].text and plain.usage.completion_tokens == 16, plain
    answer = litellm().responses(input=ASK, model="openai/talk", api_base=Host.url(), api_key=KEY, temperature=0,
                                 max_output_tokens=16)
    assert answer.output[0].content[0].text == text, answer


def case_litellm_tools_and_forms():
    import json
    messages = [{"role": "user", "content": "Tell me"}]
    formed = lite(model="formed", temperature=0.7, seed=3, max_tokens=200, **SHORT)
    called = litellm().completion(messages=messages, tools=[WEATHER], tool_choice="required", **formed)
    found = called.choices[0].message.tool_calls[0].function
    assert found.name == "weather" and type(json.loads(found.arguments)["day"]) is int, called
    form = {"type": "json_schema", "json_schema": {"name": "count", "schema": COUNT, "strict": True}}
    held = litellm().completion(messages=messages, response_format=form, **formed)
    assert list(json.loads(held.choices[0].message.content)) == ["n"], held


def case_litellm_vectors():
    rows = litellm().embedding(model="openai/minilm", input=["a sea", "a ship"], api_base=Host.url(), api_key=KEY)
    assert len(rows.data) == 2 and len(rows.data[0]["embedding"]) == 384, rows
    ranked = litellm().rerank(model="hosted_vllm/minilm", query="a ship", documents=["a sea", "a ship"],
                              api_base=Host.url().removesuffix("/v1"), api_key=KEY)
    assert ranked.results[0]["index"] == 1, ranked


def case_litellm_errors():
    module = litellm()
    messages = [{"role": "user", "content": ASK}]
    for options, wanted in ((lite(model="none"), module.NotFoundError), (lite(top_p=3), module.BadRequestError),
                            (lite() | {"api_key": "sk-wrong"}, module.AuthenticationError)):
        try:
            module.completion(messages=messages, **options)
        except wanted:
            continue
        raise AssertionError(f"no {wanted.__name__} for {options['model']}")


def case_zz_stop():
    if Host.server is not None:
        assert Host.server.stop() == 0


if __name__ == "__main__":
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
