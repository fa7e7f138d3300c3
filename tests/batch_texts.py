# Batch jobs over texts: the same bytes whatever shares a batch, and whichever ranks hold the model.
# timeout: 200
import json
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from _serving import TRIREME, encoder_dir, run_cases
from serve_text import make_model

ROWS, LAYERS = 60, 2
scratch = Path(tempfile.mkdtemp(prefix="trireme-batch-texts-"))


def words_of(number):
    return " ".join(["The king", "speaks", "of his", "daughter"][:1 + number % 4]) + f" {number}"


def inputs():
    """A model, prompts, and the same as lines of the OpenAI API; made once."""
    if not (scratch / "asks.jsonl").exists():
        make_model(scratch / "talk")
        prompts = [{"id": i, "prompt": words_of(i)} for i in range(ROWS)]
        asks = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                 "body": {"model": "talk", "prompt": words_of(i), "max_tokens": 12, "temperature": i % 2, "seed": i,
                          "logprobs": 1}} for i in range(ROWS)]
        for name, rows in (("prompts", prompts), ("asks", asks)):
            (scratch / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return scratch


def run(output, *flags, code=0, form=None, **keys):
    """The bytes of a job's output by name; of one that ends with another code what it says."""
    data = inputs() / ("asks.jsonl" if form == "openai" else "prompts.jsonl")
    job = {"model": str(scratch / "talk"), "threads": 2, "chunk_rows": 16,
           "output": {"directory": str(scratch / output), "format": "jsonl"},
           "input": {"files": [str(data)], **({"format": form} if form else {"keep": ["id"]})}, **keys}
    path = scratch / f"{output}.yaml"
    path.write_text(json.dumps(job))
    done = subprocess.run([TRIREME, "batch", path, *map(str, flags)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (output, done.returncode, done.stderr[-1500:])
    if code != 0:
        return done.stderr
    return {part.name: part.read_bytes() for part in sorted((scratch / output).glob("part-*"))}


def encoders():
    """Embeddings do not depend on batches, windows and stages; the report counts what texts were filled up by."""
    encoder, draw = encoder_dir(), random.Random(5)
    words = [w for w in json.loads((encoder / "tokenizer.json").read_text())["model"]["vocab"] if w.isalpha()]
    data = scratch / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(3, 40)))}) + "\n"
                            for _ in range(1500)))
    whole = {}
    narrow = {"window_rows": 40, "batch_rows": 7, "threads": 1}
    for name, keys in (("usual", {}), ("narrow", narrow), ("ranks", {"pp": 2})):
        output, job = scratch / f"embedded-{name}", scratch / f"embed-{name}.yaml"
        job.write_text(json.dumps({
            "model": str(encoder), "max_length": 64, "threads": 2, "input": {"files": [str(data)]},
            "output": {"directory": str(output), "format": "npy"}, **keys}))
        done = subprocess.run([TRIREME, "batch", job], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (name, done.stderr[-1500:])
        whole[name] = (output / "part-00000.npy").read_bytes()
        report = (output / "_job/report.md").read_text()
        padding = float(re.search(r"padding: ([\d.]+) %", report)[1])
        # Steps of four tokens: one and a half of some 24 tokens, and rows where a batch is not full.
        assert name != "usual" or 4 < padding < 15, report
    assert whole["usual"] == whole["narrow"] == whole["ranks"]


def stages():
    """Answers, chances and scores have the bits of one rank; stages come from the job file or the command line."""
    for task, more in (("generate", {"max_tokens": 12, "temperature": 0.8}), ("score", {})):
        one = run(f"{task}-one", task=task, **more)
        assert sum(part.count(b"\n") for part in one.values()) == ROWS, one.keys()
        assert run(f"{task}-file", task=task, pp=LAYERS, **more) == one, task
        assert run(f"{task}-flag", "--pp", LAYERS, task=task, **more) == one, task
    both = {"tp": 2, "task": "generate", "max_tokens": 12}
    assert run("both", pp=2, **both) == run("parts", **both)


def lines_of_the_api():
    """Lines that begin alike share pages, if one is there in time; no byte says so."""
    one = run("asks-one", form="openai")
    lines = [json.loads(line) for part in one.values() for line in part.splitlines()]
    known = [line["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for line in lines]
    assert len(lines) == ROWS and not any(known), known
    assert run("asks-two", form="openai", pp=2) == one


def another_worker_goes_on():
    """Stages are no part of what a job is: the rest of it may run on other ones. Parts of `tp` are."""
    prompts = {"task": "generate", "max_tokens": 12}
    path = inputs() / "prompts.jsonl"
    rows = path.read_text()
    # A line that is broken fails, and with it the job, whose first chunks are done.
    broken = rows.splitlines()
    broken[40] = "{half"
    path.write_text("\n".join(broken) + "\n")
    try:
        run("begun", "--max-errors", 0, code=5, **prompts)
        done = {part.name: part.read_bytes() for part in (scratch / "begun").glob("part-*")}
        assert 0 < len(done) < ROWS / 16, done.keys()
        said = run("begun", "--tp", 2, code=2, **prompts)
        assert "another model" in said and "tp" in said, said
        rest = run("begun", "--pp", 2, **prompts)
        assert all(rest[name] == part for name, part in done.items())
        assert rest == run("undisturbed", **prompts)
    finally:
        path.write_text(rows)


def refusals():
    """More stages than there are places to cut at; stages beside copies of a graph; adapters on ranks."""
    said = run("many", code=2, task="generate", pp=99)
    assert "too few places between layers for 99" in said, said
    said = run("copies", code=2, task="score", pp=2, instances=2)
    assert "ranks hold one instance" in said, said
    said = run("none", code=2, pp=0)
    assert "pp" in said, said


try:
    run_cases([(case.__name__, case) for case in (
        encoders, stages, lines_of_the_api, another_worker_goes_on, refusals)])
finally:
    shutil.rmtree(scratch, ignore_errors=True)
