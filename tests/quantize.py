# trireme quantize into Hugging Face directories: what is written, unpacked by NumPy, against what was given;
# perplexity of --text; what --calibrate gains; what is refused.
import json
import os
import tempfile
import urllib.request
from pathlib import Path

import ml_dtypes
import numpy as np

import _quantized as qz
from _checks import check, finish, skip, trireme
from _serving import Server

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))
LLAMA = "zoo:llama:layers=2,width=128,heads=4,kv_heads=2,inner=256,vocabulary=424,positions=128,seed=3"


def unpacked(words, bits, columns):
    each = 32 // bits
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    codes = (words.view(np.uint32)[..., None] >> shifts) & (2 ** bits - 1)
    return codes.reshape(*words.shape[:-1], -1)[..., :columns].astype(np.int64)


def dequantized(tensors, stem, config):
    """What a layer stands for, after the description of compressed-tensors."""
    weights = config["config_groups"]["group_0"]["weights"]
    bits, scale = weights["num_bits"], tensors[stem + ".weight_scale"].astype(np.float32)
    if config["format"] == "float-quantized":
        return tensors[stem + ".weight"].astype(np.float32) * scale
    if config["format"] == "int-quantized":
        return tensors[stem + ".weight"].astype(np.float32) * scale
    n, k = tensors[stem + ".weight_shape"]
    codes = unpacked(tensors[stem + ".weight_packed"], bits, k)
    zero = 2 ** (bits - 1)
    if not weights["symmetric"]:
        zero = unpacked(np.ascontiguousarray(tensors[stem + ".weight_zero_point"].T), bits, n).T[..., None]
    group = k // scale.shape[1]
    of_rows = weights["strategy"] == "channel"
    check(f"{stem}: groups", scale.shape[1] == 1 if of_rows else weights["group_size"] == group)
    return ((codes.reshape(n, -1, group) - zero) * scale[..., None]).reshape(n, k).astype(np.float32)


def model(scratch, kind=np.float32):
    """A small model with a tokenizer, its matrices in `kind`."""
    directory = scratch / f"model_{np.dtype(kind).name}"
    trireme("export", LLAMA, directory)
    tensors = {name: t.astype(kind) for name, t in qz.read_safetensors(directory / "model.safetensors").items()}
    qz.write_safetensors(directory / "model.safetensors", tensors)
    vectors = json.loads((ROOT / "src/data/testdata/bpe_vectors.json").read_text())
    tokenizer = next(s for s in vectors["small"] if s["name"] == "llama3")["tokenizer"]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory, tensors


def text(scratch):
    path = scratch / "text"
    path.write_text(" ".join(f"the king of {i * 7919 % 613} ships went to sea" for i in range(300)))
    return path


def logits(directory, ids, scratch):
    np.save(scratch / "ids.npy", ids)
    trireme("run", directory, "--input", f"input_ids={scratch}/ids.npy", "--output", scratch / "out")
    return np.load(scratch / "out" / "logits.npy").astype(np.float64)


# options, bits, format, how far a weight is at most in steps, error
FORMS = [(["int4"], "pack-quantized", 0.2), (["int4", "--group", 32], "pack-quantized", 0.13),
         (["int4", "--group", 64, "--zeros"], "pack-quantized", 0.16), (["int8"], "int-quantized", 0.012),
         (["int8", "--group", 128], "pack-quantized", 0.01),
         (["int8", "--group", 32, "--zeros"], "pack-quantized", 0.01), (["fp8"], "float-quantized", 0.04)]


def written(scratch):
    for kind in (np.float32, np.float16, ml_dtypes.bfloat16):
        directory, given = model(scratch, kind)
        for options, form, bound in FORMS:
            name = f"{np.dtype(kind).name} {' '.join(map(str, options))}"
            to = scratch / name.replace(" ", "_")
            report = json.loads(trireme("quantize", directory, "--to", *options, "-o", to, "--json"))
            config = json.loads((to / "config.json").read_text())
            quantization = config.pop("quantization_config")
            check(f"{name}: config", config == json.loads((directory / "config.json").read_text())
                  and quantization["format"] == form and quantization["ignore"] == ["lm_head"], quantization)
            tensors = qz.read_safetensors(to / "model.safetensors")
            sizes = sum(t.nbytes for t in given.values()), sum(t.nbytes for t in tensors.values())
            check(f"{name}: sizes", sizes == (report["bytes_before"], report["bytes_after"]), sizes)
            plain = {}
            for key, t in given.items():
                stem = key.removesuffix(".weight")
                if "_proj" not in key:
                    check(f"{name}: {key} as it was", np.array_equal(tensors[key].view(np.uint8), t.view(np.uint8)))
                    plain[key] = t.astype(np.float32)
                    continue
                got, want = dequantized(tensors, stem, quantization), t.astype(np.float32)
                check(f"{name}: {key} type of scales", tensors[stem + ".weight_scale"].dtype == t.dtype)
                error = np.linalg.norm(got - want) / np.linalg.norm(want)
                said = next(row for row in report["tensors"] if row["name"] == key)
                check(f"{name}: {key}", error < bound and abs(said["relative_error"] / error - 1) < 1e-3
                      and abs(said["largest_error"] - np.abs(got - want).max()) < 1e-5, (error, said))
                plain[key] = got
            for companion in ("tokenizer.json", "chat_template.jinja"):
                check(f"{name}: {companion}", (to / companion).read_text() == (directory / companion).read_text())
            same = scratch / (name.replace(" ", "_") + "_plain")
            qz.write_model(same, config, plain)
            ids = np.arange(1, 91).reshape(2, 45)
            got, want = logits(to, ids, scratch), logits(same, ids, scratch)
            error = np.abs(got - want).max() / np.abs(want).max()
            check(f"{name}: logits", error < 1e-5, error)


def perplexity(directory, ids, scratch):
    """exp of the mean surprise, of sequences of 40 tokens."""
    surprises = []
    for begin in range(0, len(ids) - 39, 40):
        y = logits(directory, np.array([ids[begin:begin + 40]]), scratch)[0]
        y -= y.max(-1, keepdims=True)
        y -= np.log(np.exp(y).sum(-1, keepdims=True))
        surprises += [-y[i, ids[begin + i + 1]] for i in range(39)]
    return np.exp(np.mean(surprises))


def measured_texts(scratch):
    directory, _ = model(scratch / "texts")
    file = text(scratch)
    lines = trireme("tokenize", directory, "--text", file.read_text())
    ids = [int(i) for i in lines.replace(",", " ").replace("[", " ").replace("]", " ").split()][:400]
    for to, name in (("int4", "int4"), ("q8_0", "q8_0.gguf")):
        out = scratch / "texts" / name
        report = json.loads(trireme("quantize", directory, "--to", to, "-o", out, "--text", file, "--context", 40,
                                    "--tokens", 400, "--json"))
        want = perplexity(directory, ids, scratch), perplexity(out, ids, scratch)
        got = report["perplexity_before"], report["perplexity_after"]
        check(f"perplexity of {to}", np.allclose(got, want, rtol=1e-4) and got[0] != got[1], (got, want))
    shown = trireme("quantize", directory, "--to", "int8", "-o", scratch / "texts" / "shown", "--text", file)
    check("perplexity is shown", "perplexity " in shown and "error" in shown, shown[-300:])


def gained(scratch):
    """A trained model on its own stories: rounding by texts loses less than rounding each weight."""
    root = SHARED / "llm/stories260K"
    if not root.exists():
        return skip(f"no {root}")
    lines = scratch / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": "Once upon a time", "seed": i}) + "\n" for i in range(120)))
    out = trireme("generate", root / "hf", "--tokenizer", root / "stories260K.gguf", "--batch-file", lines, "--json",
                  "--temperature", 1, "--max-tokens", 250, "--max-sequences", 32)
    stories = ["Once upon a time" + json.loads(line)["text"] for line in out.splitlines()]
    (scratch / "learn").write_text("\n".join(stories[:60]))
    (scratch / "measure").write_text("\n".join(stories[60:]))
    lost = []
    for more in ([], ["--calibrate", scratch / "learn"]):
        report = json.loads(trireme("quantize", root / "hf", "--to", "int4", "--group", 32, "-o", scratch / "rounded",
                                    "--text", scratch / "measure", "--tokenizer", root / "stories260K.gguf",
                                    "--context", 128, "--tokens", 16384, "--json", *more))
        lost.append(report["perplexity_after"] / report["perplexity_before"] - 1)
        said = [t["error_of_products"] for t in report["tensors"] if not t["why"]]
        check("errors of products", all((e > 0) == bool(more) and e < 0.2 for e in said), said)
        stays = [t["name"] for t in report["tensors"] if t["why"]]
        check("what stays is said", stays and all("down_proj" in name for name in stays), stays)
    check("calibration", 0 < lost[1] < 0.75 * lost[0], lost)
    for given in (root / "hf", root / "stories260K.gguf"):
        after = []
        for more in ([], ["--calibrate", scratch / "learn"]):
            report = json.loads(trireme("quantize", given, "--to", "iq4_nl", "-o", scratch / "x.gguf", "--text",
                                        scratch / "measure", "--tokenizer", root / "stories260K.gguf", "--context", 128,
                                        "--tokens", 16384, "--json", *more))
            rounded = [t for t in report["tensors"] if t["to"] == "iq4_nl" and t["name"] != "token_embd.weight"]
            by = {t["by_importance"] for t in rounded}
            check(f"importance {given.name}", by == {bool(more)}, report)
            after.append(report["perplexity_after"])
        check(f"importance {given.name}: perplexity", after[1] < 1.01 * after[0] and after[1] != after[0], after)


def served(scratch):
    """A quantized directory on the server answers as on the command line, on one rank and on two."""
    directory, _ = model(scratch)
    trireme("quantize", directory, "--to", "int4", "--group", 32, "-o", scratch / "models" / "talk")
    out = trireme("generate", scratch / "models" / "talk", "--prompt", "the king of", "--max-tokens", 20, "--json")
    want = json.loads(out)["text"]
    for ranks in (1, 2):
        with Server(scratch / "models", "--threads", "2", "--tp", str(ranks)) as server:
            body = {"model": "talk", "prompt": "the king of", "max_tokens": 20, "temperature": 0}
            request = urllib.request.Request(server.url + "/v1/completions", data=json.dumps(body).encode(),
                                             headers={"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                got = json.loads(reply.read())["choices"][0]["text"]
            check(f"served --tp {ranks}", got == want, (got, want))


def refused(scratch):
    directory, _ = model(scratch / "refused")
    for words, code, said in ((["--to", "int4", "--group", 48], 2, "48"), (["--to", "int5"], 4, "int5"),
                              (["--to", "fp8", "--group", 32], 4, "groups"),
                              (["--to", "q8_0", "--zeros"], 2, "--zeros")):
        error = trireme("quantize", directory, *words, "-o", scratch / "x", code=code)
        check(f"refuses {words}", said in error, error[-300:])
    error = trireme("quantize", directory, "--to", "q8_0", "-o", scratch / "x", "--text", text(scratch), code=2)
    check("a file that could not be opened", ".gguf" in error and not (scratch / "x").exists(), error[-300:])
    trireme("quantize", directory, "--to", "q8_0", "-o", scratch / "x.gguf")
    error = trireme("quantize", scratch / "x.gguf", "--to", "int4", "-o", scratch / "x", code=4)
    check("a GGUF file has no directory", "is a file" in error, error[-300:])
    error = trireme("quantize", directory, "--to", "int4", "-o", directory, code=2)
    check("the model itself", "the model itself" in error, error[-300:])
    before = (scratch / "x.gguf").read_bytes()
    error = trireme("quantize", scratch / "x.gguf", "--to", "q4_0", "-o", scratch / "x.gguf", code=2)
    check("the file itself", "the model itself" in error and (scratch / "x.gguf").read_bytes() == before, error[-300:])
    error = trireme("export", scratch / "x.gguf", scratch / "exported", code=4)
    check("a GGUF file as a directory", "GGUF" in error and not (scratch / "exported").exists(), error[-300:])
    error = trireme("export", scratch / "x.gguf", scratch / "blocks.onnx", code=4)
    check("blocks as ONNX", "trireme quantize --to f32" in error, error[-300:])
    trireme("quantize", directory, "--to", "int4", "-o", scratch / "once")
    error = trireme("export", scratch / "once", scratch / "exported", code=4)
    check("is not exported", "stored weights" in error and not (scratch / "exported").exists(), error[-300:])
    trireme("export", scratch / "once", scratch / "once.onnx")  # as codes and what makes numbers of them
    ids = np.arange(1, 41).reshape(2, 20)
    got, want = logits(scratch / "once.onnx", ids, scratch), logits(scratch / "once", ids, scratch)
    check("exported as ONNX", np.abs(got - want).max() < 1e-4 * np.abs(want).max())
    config = {"run": {"steps": 1, "name": "x", "directory": str(scratch / "run")},
              "model": {"source": str(scratch / "once")}, "batch": {"global": 1},
              "data": {"path": str(text(scratch)), "format": "characters", "context": 8}}
    (scratch / "train.yaml").write_text(json.dumps(config))
    check("is not trained", "training of weights in few bits" in trireme("train", scratch / "train.yaml", code=4))
    for to in ("int8", "int4"):
        error = trireme("quantize", scratch / "once", "--to", to, "-o", scratch / "twice", code=4)
        check("quantized already", "already" in error, error[-300:])


def main():
    for part in (written, measured_texts, gained, served, refused):
        with tempfile.TemporaryDirectory() as folder:
            part(Path(folder))
    finish()


main()
