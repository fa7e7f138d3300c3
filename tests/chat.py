# trireme chat and answers of fixed form: turns from a pipe, shared beginnings, commands, Ctrl-C, forms, refusals.
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from _checks import check, finish

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
LLAMA = "zoo:llama:layers=2,width=32,heads=4,kv_heads=2,inner=48,vocabulary=424,positions=512"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def run(verb, *words, text="", code=0):
    done = subprocess.run([TRIREME, verb, *map(str, words)], input=text.encode(), capture_output=True, timeout=300)
    check(
        f"exit code of {verb} " + " ".join(map(str, words))[:120],
        done.returncode == code,
        f"{done.returncode}, want {code}: {done.stderr.decode()[-500:]}",
    )
    return done.stdout.decode() if code == 0 else done.stderr.decode()


def model_directory(scratch):
    vectors = json.loads((ROOT / "src/data/testdata/bpe_vectors.json").read_text())
    tokenizer = next(s for s in vectors["small"] if s["name"] == "llama3")["tokenizer"]
    model = scratch / "model"
    subprocess.run([TRIREME, "export", LLAMA, model], check=True, capture_output=True)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return model


def test_turns(model):
    words = [model, "--max-tokens", 20, "--threads", 1, "--page-tokens", 4]
    turns = "The king\nand his men\n/reset\nThe king\n/system Be brief.\nThe king\n"
    got = [json.loads(line) for line in run("chat", *words, "--json", text=turns).splitlines()]
    check("four answers", len(got) == 4, got)
    check("a turn knows what was said", got[1]["known_tokens"] > got[0]["prompt_tokens"] - 4, got)
    check("it reads the answer too", got[1]["prompt_tokens"] > got[0]["prompt_tokens"] + got[0]["tokens"] // 2, got)
    check("reset forgets", got[2]["text"] == got[0]["text"] and got[2]["prompt_tokens"] == got[0]["prompt_tokens"], got)
    check("the system turn is read", got[3]["prompt_tokens"] > got[2]["prompt_tokens"], got)
    shown = run("chat", *words, text="The king")
    check("the text alone", shown == got[0]["text"] + "\n", shown)
    once = json.loads(run("generate", *words, "--chat", "--prompt", "The king", "--json"))
    check("generate --chat is one turn", once["text"] == got[0]["text"], once)
    check("a template of its own file", "[" in run("tokenize", model, "--text", "x"))
    (model / "other.jinja").write_text("{{ raise_exception('not so') }}")
    check(
        "a template that refuses",
        "not so" in run("chat", *words, "--chat-template", model / "other.jinja", text="a\n", code=2),
    )


def test_interrupt(model):
    """Ctrl-C ends the answer; the next turn is answered, and the end of the input ends the program."""
    chat = subprocess.Popen(
        [TRIREME, "chat", str(model), "--max-tokens", "480", "--threads", "1", "--ignore-eos"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    chat.stdin.write(b"The king\n")
    chat.stdin.flush()
    first = os.read(chat.stdout.fileno(), 64)
    chat.send_signal(signal.SIGINT)
    chat.stdin.write(b"/exit\n")
    out, err = chat.communicate(timeout=120)
    check("the program goes on after Ctrl-C", chat.returncode == 0 and len(first) > 0, (chat.returncode, err))


def test_forms(model, scratch):
    words = [model, "--prompt", "The king", "--threads", 1, "--temperature", 1, "--json", "--max-tokens", 300]
    schema = {
        "type": "object",
        "required": ["name", "age"],
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer"},
            "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["a", "b"]}},
        },
    }
    (scratch / "schema.json").write_text(json.dumps(schema))
    (scratch / "sums.gbnf").write_text('root ::= number ("+" number){1,3}\nnumber ::= [1-9] [0-9]?\n')
    for seed in range(8):
        got = json.loads(run("generate", *words, "--seed", seed, "--json-schema", scratch / "schema.json"))
        value = json.loads(got["text"]) if got["finish"] == "stop" else {"name": "", "age": 0}
        check(
            f"schema, seed {seed}",
            set(value) <= {"name", "age", "tags"}
            and type(value["age"]) is int
            and len(value["name"]) <= 5
            and set(value.get("tags", [])) <= {"a", "b"},
            got,
        )
        got = json.loads(run("generate", *words, "--seed", seed, "--regex", "[ab]{2,4}-[0-9]{3}"))
        check(f"expression, seed {seed}", re.fullmatch("[ab]{2,4}-[0-9]{3}", got["text"]), got)
        got = json.loads(run("generate", *words, "--seed", seed, "--grammar", scratch / "sums.gbnf"))
        check(f"grammar, seed {seed}", re.fullmatch(r"[1-9][0-9]?(\+[1-9][0-9]?){1,3}", got["text"]), got)
        got = json.loads(run("generate", *words, "--seed", seed, "--choice", "yes", "--choice", "no, never"))
        check(f"choice, seed {seed}", got["text"] in ("yes", "no, never"), got)
    check("two forms", "one form" in run("generate", *words, "--choice", "a", "--regex", "b", code=2))
    (scratch / "schema.json").write_text(json.dumps({"type": "integer", "minimum": 3}))
    check(
        "a keyword that is not done",
        "minimum" in run("generate", *words, "--json-schema", scratch / "schema.json", code=4),
    )


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = model_directory(scratch)
        # The model's configuration ends texts at </s>.
        config = json.loads((model / "config.json").read_text())
        config["eos_token_id"] = 2
        (model / "config.json").write_text(json.dumps(config))
        test_turns(model)
        test_interrupt(model)
        test_forms(model, scratch)
    finish()


main()
