# Exported networks in other programs: Transformers loads the directories, ONNX Runtime the files; same logits.
# tier: oracles
# timeout: 280
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
TEXT = "layers=2,width=32,heads=4,vocabulary=50"
# network and options, the class of Transformers that loads it (none: ONNX alone), inputs
NETWORKS = [
    ("gpt2:" + TEXT, "AutoModelForCausalLM", "ids"),
    ("gpt2:" + TEXT + ",is_tied=false", "AutoModelForCausalLM", "ids"),
    ("nanogpt:layers=2,width=32", "AutoModelForCausalLM", "ids"),
    ("llama:" + TEXT + ",kv_heads=2,inner=48", "AutoModelForCausalLM", "ids"),
    ("llama:" + TEXT + ",head_dim=16,has_attention_bias=true,is_tied=false", "AutoModelForCausalLM", "ids"),
    ("llama:" + TEXT + ",inner=48,positions=64,rope_factor=8,rope_original=16", "AutoModelForCausalLM", "ids"),
    ("llama:" + TEXT + ",inner=48,positions=64,rope_factor=4", "AutoModelForCausalLM", "ids"),
    ("bert:" + TEXT, "AutoModelForMaskedLM", "masked"),
    ("bert:" + TEXT + ",head=classification,classes=3", "AutoModelForSequenceClassification", "masked"),
    ("bert:" + TEXT + ",head=none,padding=-1", "AutoModel", "masked"),
    ("vit_tiny:layers=2,width=32", "AutoModelForImageClassification", "image 1 28"),
    ("resnet18:size=64,classes=10,noise=0.03", "AutoModelForImageClassification", "image 3 64"),
    ("resnet50:size=64,classes=10,noise=0.03", "AutoModelForImageClassification", "image 3 64"),
    ("mlp", None, "image 1 28"),
    ("cnn", None, "image 1 28"),
    ("resnet8", None, "image 1 28"),
    ("perception", None, "scene"),
]
passed, failures, skips = 0, [], []


def inputs_of(kind):
    rng = np.random.default_rng(3)
    if kind.startswith("image"):
        channels, size = map(int, kind.split()[1:])
        return {"image": rng.normal(size=(2, channels, size, size)).astype(np.float32)}
    if kind == "scene":
        mask = (np.arange(7)[None, :] < np.array([[7], [4]])).astype(np.int64)
        return {"image": rng.normal(size=(2, 3, 64, 64)).astype(np.float32),
                "points": rng.normal(size=(2, 7, 4)).astype(np.float32), "points_mask": mask}
    inputs = {"input_ids": rng.integers(1, 50, (2, 9))}
    if kind == "masked":
        inputs["attention_mask"] = (np.arange(9)[None, :] < np.array([[9], [6]])).astype(np.int64)
    return inputs


def ours(model, inputs, scratch):
    """First output of `trireme run`."""
    words = []
    for name, value in inputs.items():
        np.save(scratch / f"{name}.npy", value)
        words += ["--input", f"{name}={scratch / name}.npy"]
    subprocess.run([TRIREME, "run", model, *words, "--output", scratch / "out"], check=True, stdout=subprocess.PIPE)
    return {p.stem: np.load(p) for p in (scratch / "out").glob("*.npy")}


def close(what, got, want):
    global passed
    error = np.abs(got - want).max() / max(1.0, np.abs(want).max())
    if error < 1e-5:
        passed += 1
    else:
        failures.append(f"{what}: differs by {error:.3g}")


def through_transformers(network, cls, inputs, directory, results):
    import torch
    import transformers
    subprocess.run([TRIREME, "export", "zoo:" + network, directory], check=True)
    model, info = getattr(transformers, cls).from_pretrained(directory, output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v and not all("num_batches_tracked" in n or "pooler" in n for n in v)}
    if wrong:
        failures.append(f"{network}: Transformers reports {wrong}")
    named = {"image": "pixel_values"}
    with torch.no_grad():
        out = model.eval()(**{named.get(k, k): torch.from_numpy(v) for k, v in inputs.items()})
    want = (out.last_hidden_state if cls == "AutoModel" else out.logits).numpy()
    got = results["last_hidden_state" if cls == "AutoModel" else "logits"]
    if "attention_mask" in inputs and got.ndim == 3:  # what stands at padding means nothing
        keep = inputs["attention_mask"][:, :, None]
        got, want = got * keep, want * keep
    close(f"{network}: Transformers", got, want)


def through_onnx(network, inputs, path, results):
    import onnxruntime
    subprocess.run([TRIREME, "export", "zoo:" + network, path], check=True)
    session = onnxruntime.InferenceSession(path)
    names = [o.name for o in session.get_outputs()]
    for name, value in zip(names, session.run(names, inputs)):
        if name in results:
            close(f"{network}: ONNX Runtime {name}", results[name], value)


def has(module):
    try:
        __import__(module)
        return True
    except ImportError:
        return False


def main():
    have = {m: has(m) for m in ("transformers", "torch", "onnxruntime")}
    for network, cls, kind in NETWORKS:
        inputs = inputs_of(kind)
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            results = ours("zoo:" + network, inputs, scratch)
            try:
                if cls and have["transformers"] and have["torch"]:
                    through_transformers(network, cls, inputs, str(scratch / "hf"), results)
                    again = ours(str(scratch / "hf"), inputs, scratch)
                    close(f"{network}: loaded again", again[list(results)[0]], results[list(results)[0]])
                elif cls:
                    skips.append("no Transformers: ./dev test --oracles installs it")
                if have["onnxruntime"]:
                    through_onnx(network, inputs, str(scratch / "model.onnx"), results)
                else:
                    skips.append("no ONNX Runtime: ./dev bench installs it")
            except Exception as error:  # every network gets its turn
                failures.append(f"{network}: {type(error).__name__}: {str(error)[:300]}")
    for text in failures:
        print("failed:", text)
    for text in skips:
        print("skipped:", text)
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    sys.exit(1 if failures else 0)


main()
