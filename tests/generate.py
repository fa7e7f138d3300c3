# trireme generate: a reference's tokens, text that streams and stops, batch files, characters, errors, speed figures.
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _checks import check, finish, skip

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))
LLAMA = "zoo:llama:layers=2,width=32,heads=4,kv_heads=2,inner=48,vocabulary=424,positions=128"


def generate(*words, code=0):
    done = subprocess.run([TRIREME, "generate", *map(str, words)], capture_output=True, stdin=subprocess.DEVNULL)
    check("exit code of " + " ".join(map(str, words))[:120], done.returncode == code,
          f"{done.returncode}, want {code}: {done.stderr.decode()[-500:]}")
    return done.stdout.decode()


def answers(*words):
    return [json.loads(line) for line in generate(*words, "--json").splitlines()]


def test_reference():
    root = SHARED / "llm/stories260K"
    if not root.exists():
        return skip(f"no {root}")
    cases = json.loads((root / "reference_greedy.json").read_text())["cases"]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
        for c in cases:
            n = len(c["prompt_tokens"])
            left = len(c["greedy_tokens"]) - n
            lines.write(json.dumps({"prompt_ids": c["prompt_tokens"], "max_tokens": left}) + "\n")
        lines.flush()
        for more in ([], ["--chunk", 4], ["--max-sequences", 2, "--page-tokens", 5], ["--cache-type", "f16"]):
            got = answers(root / "hf", "--batch-file", lines.name, "--ignore-eos", "--threads", 2, *more)
            for a, c in zip(got, cases):
                check(f"stories260K {more}", a["tokens"] == c["greedy_tokens"][len(c["prompt_tokens"]):], a["tokens"])
        one = generate(root / "hf", "--prompt-ids", "1", "--max-tokens", 5, "--threads", 1)
        check("ids as text", one.strip() == ",".join(map(str, cases[0]["greedy_tokens"][1:6])), one)


def peak_bytes(*words):
    """Largest resident memory of a run of trireme that ends well."""
    with subprocess.Popen([TRIREME, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        check("exit code of " + str(words[0]), run.returncode == 0, run.stderr.read().decode()[-500:])
    return usage.ru_maxrss * 1024


def test_gguf(scratch):
    root = SHARED / "llm/stories260K"
    if not root.exists():
        return skip(f"no {root}")
    cases = json.loads((root / "reference_greedy.json").read_text())["cases"]
    lines = scratch / "gguf.jsonl"
    lines.write_text("".join(json.dumps({"prompt_ids": c["prompt_tokens"], "max_tokens": len(c["greedy_tokens"]) - len(
        c["prompt_tokens"])}) + "\n" for c in cases))
    given = root / "stories260K.gguf"
    for model in (given, root / "hf"):
        # The same numbers in another file: the same tokens. In 8 bits the first of them.
        for to, least in (("f32", 128), ("q8_0", 16), ("q5_1", 3)):
            file = scratch / f"{model.name}.{to}.gguf"
            done = subprocess.run([TRIREME, "quantize", model, "--to", to, "-o", file, "--json"], capture_output=True)
            check(f"quantize {model.name} to {to}", done.returncode == 0, done.stderr.decode()[-500:])
            report = json.loads(done.stdout)
            check("sizes", file.stat().st_size > report["bytes_after"] > 0.9 * file.stat().st_size - 16384, report)
            for spread in (("--tp", 1), ("--tp", 2), ("--pp", 2), ("--pp", 2, "--tp", 2)):
                got = answers(file, "--batch-file", lines, "--ignore-eos", "--threads", 2, *spread)
                for a, c in zip(got, cases):
                    want = c["greedy_tokens"][len(c["prompt_tokens"]):][:least]
                    check(f"{file.name} {spread}", a["tokens"][:len(want)] == want, a["tokens"][:20])
    shown = subprocess.run([TRIREME, "inspect", given, "--dim", "seq=4"], capture_output=True, text=True)
    check("inspect shows the file's names", "blk.0.attn_q.weight" in shown.stdout, shown.stdout[:300])
    cut = scratch / "cut.gguf"
    cut.write_bytes(given.read_bytes()[:-1000])
    generate(cut, "--prompt-ids", 1, code=2)


HALVE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import ml_dtypes
import _quantized as qz
config = json.load(open(sys.argv[2] + "/config.json"))
tensors = qz.read_safetensors(sys.argv[2] + "/model.safetensors")
qz.write_model(sys.argv[3], config, {name: t.astype(ml_dtypes.bfloat16) for name, t in tensors.items()})
"""


def test_stored_weights_take_their_file(scratch):
    """Weights in 16 bits and in blocks take their file, pages and 5 % of memory; ranks split them but for tables."""
    shape = "zoo:llama:layers=4,width=1024,heads=8,inner=2816,vocabulary=4096,positions=64,weights=repeated"
    small = "zoo:llama:layers=1,width=64,heads=8,inner=64,vocabulary=4096,positions=64"
    for name, network in (("large", shape), ("small", small)):
        subprocess.run([TRIREME, "export", network, scratch / name], check=True)
    # In a process of its own: a child's largest memory counts what its parent had when it was made.
    subprocess.run([sys.executable, "-c", HALVE, ROOT / "tests", scratch / "large", scratch / "half"], check=True)
    cache = 16 << 20
    options = ["--prompt-ids", 1, "--max-tokens", 4, "--ignore-eos", "--cache-bytes", "16MiB", "--threads", 2]
    program = peak_bytes("generate", scratch / "small", *options)
    for to in ("half", "bf16", "f16", "q8_0", "q4_0", "q4_k"):
        model = file = scratch / f"large.{to}.gguf"
        if to == "half":
            model, file = scratch / "half", scratch / "half/model.safetensors"
        else:
            subprocess.run([TRIREME, "quantize", scratch / "large", "--to", to, "-o", file], check=True,
                           stdout=subprocess.DEVNULL)
        size = file.stat().st_size
        for axis, ranks in (("--tp", 1), ("--tp", 2), ("--pp", 2)):
            # Ranks pack side by side: how much of the file is in memory at once depends on who is where. A file that
            # nobody gave back would be there whole, beside what was packed.
            tries = 1 if ranks == 1 else 3
            peak = min(peak_bytes("generate", model, *options, axis, ranks) for _ in range(tries)) - program
            check(f"memory of {to} {axis} {ranks}", peak < (1.05 if ranks == 1 else 1.5) * size + ranks * cache,
                  f"{peak / 1e6:.0f} MB, the file has {size / 1e6:.0f}, pages {cache / 1e6:.0f}")


def test_text(scratch):
    vectors = json.loads((ROOT / "src/data/testdata/bpe_vectors.json").read_text())
    tokenizer = next(s for s in vectors["small"] if s["name"] == "llama3")["tokenizer"]
    model = scratch / "model"
    subprocess.run([TRIREME, "export", LLAMA, model], check=True)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    plain = answers(model, "--prompt", "The king", "--max-tokens", 40)[0]
    check("answer", len(plain["tokens"]) == 40 and plain["finish"] == "length" and plain["prompt_tokens"] > 1, plain)
    shown = generate(model, "--prompt", "The king", "--max-tokens", 40)
    check("streamed text", shown == plain["text"] + "\n", (shown, plain["text"]))
    stop = plain["text"][8:11]
    cut = answers(model, "--prompt", "The king", "--max-tokens", 40, "--stop", stop)[0]
    check("stop text", cut["text"] == plain["text"][: plain["text"].find(stop)] and cut["finish"] == "stop", cut)
    end = plain["tokens"][6]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 423]}))
    ended = answers(model, "--prompt", "The king", "--max-tokens", 40)[0]
    before = plain["tokens"][: plain["tokens"].index(end)]
    check("end token", ended["tokens"] == before and ended["finish"] == "stop", ended)
    ignored = answers(model, "--prompt", "The king", "--max-tokens", 40, "--ignore-eos")[0]
    check("ignored end token", ignored["tokens"] == plain["tokens"], ignored)
    lines = scratch / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": f"Speak {i}", "temperature": 0.8, "seed": i % 3, "top_k": 50,
                                         "max_tokens": 3 + i}) + "\n" for i in range(9)))
    wide = answers(model, "--batch-file", lines, "--ignore-eos")
    narrow = answers(model, "--batch-file", lines, "--ignore-eos", "--max-sequences", 2, "--chunk", 3, "--threads", 1)
    check("answers in any company", wide == narrow and [len(a["tokens"]) for a in wide] == list(range(3, 12)), wide)
    check("order of prompts", [a["prompt"] for a in wide] == [f"Speak {i}" for i in range(9)])
    several = generate(model, "--prompt", "a", "--prompt", "b", "--max-tokens", 2)
    check("several prompts", several.startswith("--- 0\n") and "--- 1\n" in several, several)
    lines.write_text('{"prompt": "x", "temprature": 1}\n')
    generate(model, "--batch-file", lines, code=2)


def test_characters(scratch):
    text = scratch / "text.txt"
    text.write_text("".join(map(chr, range(32, 127))) + "\n\u00e9")
    model = "zoo:nanogpt:layers=1,width=32,vocabulary=97"
    got = answers(model, "--characters", text, "--prompt", "Hi", "--max-tokens", 20)[0]
    check("characters", len(got["text"]) == 20 and got["prompt_tokens"] == 2, got)
    generate(model, "--characters", text, "--prompt", "\u20ac", code=2)


def test_trained(scratch):
    """A run of the trainer is continued as it stands, without an export."""
    text = scratch / "abc.txt"
    text.write_text("abcdefgh\n" * 400)
    config = {"run": {"steps": 60, "name": "abc", "directory": str(scratch / "run")},
              "model": {"source": "zoo:nanogpt",
                        "config": {"width": 32, "layers": 1, "positions": 32, "vocabulary": 9}},
              "data": {"path": str(text), "format": "characters", "context": 32}, "batch": {"global": 8},
              "optimizer": {"kind": "adamw"}, "schedule": {"lr": 0.01}}
    (scratch / "abc.yaml").write_text(json.dumps(config))
    done = subprocess.run([TRIREME, "train", scratch / "abc.yaml", "--quiet"], capture_output=True, text=True)
    check("training", done.returncode == 0, done.stderr)
    said = generate(scratch / "run", "--characters", text, "--prompt", "abcd", "--max-tokens", 14)
    check("what it learned", said == "efgh\nabcdefgh\na"[:14] + "\n", repr(said))


def test_speed_and_errors():
    bench = json.loads(generate(LLAMA, "--bench", "prompt=40,new=8,batch=3", "--json", "--threads", 2))
    check("bench", bench["batch"] == 3 and bench["decode_tokens_s"] > 0 and bench["decode_step_bytes"] > 0, bench)
    check("no profile unless asked for", "decode_kernels" not in bench, bench)
    profile = json.loads(generate(LLAMA, "--bench", "prompt=40,new=8,batch=3", "--json", "--profile", "--threads", 2))
    kernels = profile["decode_kernels"]
    check("profile of a decoding step", sum(k["count"] for k in kernels) > 0 and all(k["us"] >= 0 for k in kernels)
          and kernels == sorted(kernels, key=lambda k: -k["us"]), kernels)
    rows = max(int(k["shape"].split(",")[1]) for k in profile["chunk_kernels"] if k["op"] == "linear")
    check("profile of a chunk has its rows", rows >= 40, profile)
    emulated = answers(LLAMA, "--prompt-ids", "1,2,3", "--max-tokens", 4, "--device", "emulated")
    host = answers(LLAMA, "--prompt-ids", "1,2,3", "--max-tokens", 4)
    check("emulated device", emulated[0]["tokens"] == host[0]["tokens"], (emulated, host))
    generate("zoo:resnet8", "--prompt-ids", "1", code=2)
    generate("zoo:bert:layers=1,width=32,heads=4", "--prompt-ids", "1", code=2)
    generate(LLAMA, "--prompt", "text", code=2)
    generate(LLAMA, "--prompt-ids", "500", code=2)
    generate(LLAMA, code=2)
    generate(LLAMA, "--prompt-ids", "1", "--cache-bytes", "1KiB", code=5)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        test_reference()
        test_text(Path(scratch))
        test_characters(Path(scratch))
        test_trained(Path(scratch))
        test_gguf(Path(scratch))
        test_stored_weights_take_their_file(Path(scratch))
        test_speed_and_errors()
    finish()


main()
