# Chat templates against Transformers: the same text for the templates of tests/templates and of the shared data, and
# for expressions one by one, over conversations with system turns, tools, reasoning and turns to continue.
# tier: oracles
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))
passed, failures, skips = 0, [], []

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Today's weather, \"as it is\" <b>",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Größe & Ort"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": ["number", "null"], "minimum": -1.5e-7},
                    "b": {"type": "number", "maximum": 1e22},
                },
            },
        },
    },
]
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich 🌧", "n": 3, "x": [1.0, None, True]}},
}
CHATS = {
    "one": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": " Be brief. \n"}, {"role": "user", "content": "  Hi there \n"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " b "},
        {"role": "user", "content": "c\n\nd"},
    ],
    "open": [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two, "}],
    "open_system": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "The answer"},
    ],
    "thinking": [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\na1"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "a2", "reasoning_content": "because\n"},
        {"role": "user", "content": "q3"},
    ],
    "call": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "tool_call_id": "abcdef123", "name": "get_weather"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks"},
    ],
    "call_none": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "tool_call_id": "abcdef123"},
    ],
    "two_tools": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "Let me see", "thinking": "both", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "user", "content": "and?"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "image"}]}],
    "twice": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "many": [{"role": ["user", "assistant", "skip"][i % 3], "content": str(i)} for i in range(12)],
    "empty": [],
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
EXPRESSIONS = (ROOT / "tests/templates/expressions.txt").read_text().strip().split("\n")
# What both must refuse.
REFUSED = [
    "{{ raise_exception('no') }}",
    "{{ missing.x }}",
    "{{ 1 + 'a' }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ none() }}",
    "{{ 1 // 0 }}",
    "{% if %}",
    "{{ 'a' }",
    "{% endif %}",
    "{% for x in [1] %}",
    "{{ [].append(1) }}",
    "{{ 'x' | nofilter }}",
    "{{ 1 is notest }}",
    "{{ missing + 1 }}",
    "{% set a, b = [1] %}",
    "{{ ''.__class__ }}{{ ''.__class__.x }}",
    "{{ 1 < 'a' }}",
]


def ours(folder, chat, tools, variables, prompt, goes_on):
    paths = {}
    for name, value in [("messages", chat), ("tools", tools), ("variables", variables)]:
        if value is not None:
            paths[name] = folder / f"{name}.json"
            paths[name].write_text(json.dumps(value))
    words = [x for name, path in paths.items() for x in (f"--{name}", str(path))]
    words += [] if prompt else ["--no-generation-prompt"]
    words += ["--continue-final-message"] if goes_on else []
    done = subprocess.run([TRIREME, "tokenize", str(folder), *words], capture_output=True)
    return (done.stdout.decode(), None) if done.returncode == 0 else (None, done.stderr.decode())


def theirs(template, chat, tools, variables, prompt, goes_on):
    try:
        texts, _ = render_jinja_template(
            [chat],
            tools=tools,
            chat_template=template,
            add_generation_prompt=prompt,
            continue_final_message=goes_on,
            **SPECIAL,
            **(variables or {}),
        )
        return texts[0]
    except Exception:
        return None


def compare(what, folder, template, chat, tools=None, variables=None, prompt=True, goes_on=False):
    global passed
    (folder / "chat_template.jinja").write_text(template)
    want = theirs(template, chat, tools, variables, prompt, goes_on)
    got, error = ours(folder, chat, tools, variables, prompt, goes_on)
    if got == want:
        passed += 1
    else:
        failures.append(f"{what}:\n  ours   {got if got is not None else error!r}\n  theirs {want!r}"[:3000])
    return want


def templates():
    out = {path.stem: path.read_text() for path in sorted((ROOT / "tests/templates").glob("*.jinja"))}
    for path in SHARED.rglob("tokenizer_config.json") if SHARED.exists() else []:
        text = json.loads(path.read_text()).get("chat_template")
        if isinstance(text, str):
            out[path.parent.name] = text
    return out


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
        rendered = 0
        for what, template in templates().items():
            for chat_name, chat in CHATS.items():
                for tools in (None, TOOLS):
                    for prompt in (True, False):
                        if (
                            compare(
                                f"{what} {chat_name} tools={tools is not None} prompt={prompt}",
                                folder,
                                template,
                                chat,
                                tools,
                                None,
                                prompt,
                            )
                            is not None
                        ):
                            rendered += 1
                if chat and chat[-1]["role"] == "assistant":
                    compare(f"{what} {chat_name} goes on", folder, template, chat, None, None, False, True)
            for variables in (
                {"enable_thinking": False, "reasoning_effort": "high"},
                {"tools_in_user_message": False, "builtin_tools": ["code_interpreter", "get_weather"]},
            ):
                compare(f"{what} {variables}", folder, template, CHATS["call"], TOOLS, variables)
        if rendered < 150:
            failures.append(f"only {rendered} conversations are rendered by both")
        for i, expression in enumerate(EXPRESSIONS):
            if compare(f"expression {expression}", folder, expression, CHATS["turns"]) is None:
                failures.append(f"not even Jinja takes {expression}")
        for expression in REFUSED:
            if compare(f"refused {expression}", folder, expression, CHATS["turns"]) is not None:
                failures.append(f"Jinja takes {expression}")
    for failure in failures[: int(os.environ.get("SHOW", "30"))]:
        print("FAILED", failure)
    for reason in skips:
        print("skipped:", reason)
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    sys.exit(1 if failures else 0)


main()
