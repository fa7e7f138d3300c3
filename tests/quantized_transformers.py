# What `trireme quantize` writes, opened by Transformers and compressed-tensors: the same numbers, the same logits.
# tier: oracles
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import _quantized as qz

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
LLAMA = "zoo:llama:layers=2,width=128,heads=4,kv_heads=2,inner=256,vocabulary=200,positions=128,seed=3"
# Transformers quantizes the rows of the last two, too, as config.json says: 8 bits of each.
FORMS = {("int4",): 2e-5, ("int4", "--group", "32"): 2e-5, ("int8", "--group", "64"): 2e-5, ("int8",): 0.1,
         ("fp8",): 0.2}
passed, failures = 0, []


def check(what, ok, detail=""):
    global passed
    passed += bool(ok)
    if not ok:
        failures.append(f"{what}: {detail}"[:1000])
        print("FAILED", failures[-1], flush=True)


def trireme(*words):
    subprocess.run([TRIREME, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def main():
    try:
        import compressed_tensors  # noqa: F401
        import torch
        import transformers
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationScheme
    except ImportError as error:
        return print(f"skipped: {error}\n0 passed, 0 failed, 1 skipped")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        scratch = Path(folder)
        trireme("export", LLAMA, scratch / "model")
        ids = np.arange(1, 91).reshape(2, 45)
        np.save(scratch / "ids.npy", ids)
        for form, bound in FORMS.items():
            out = scratch / "_".join(form)
            trireme("quantize", scratch / "model", "--to", *form, "-o", out)
            model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
            want = model(torch.tensor(ids)).logits.numpy()
            trireme("run", out, "--input", f"input_ids={scratch}/ids.npy", "--output", scratch / "out")
            error = np.abs(np.load(scratch / "out" / "logits.npy") - want).max() / np.abs(want).max()
            check(f"Transformers, {form}", error < bound, error)
        # Transformers 5.23 makes room for zero points that are not in words: the package alone reads them.
        trireme("quantize", scratch / "model", "--to", "int4", "--group", "32", "--zeros", "-o", scratch / "zeros")
        config = json.loads((scratch / "zeros/config.json").read_text())["quantization_config"]
        scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
        given = qz.read_safetensors(scratch / "model/model.safetensors")
        tensors = qz.read_safetensors(scratch / "zeros/model.safetensors")
        for stem in sorted({name.removesuffix(".weight_packed") for name in tensors if name.endswith("_packed")}):
            parts = {name.removeprefix(stem + "."): torch.from_numpy(t.copy()) for name, t in tensors.items()
                     if name.startswith(stem + ".")}
            want = given[stem + ".weight"]
            got = PackedQuantizationCompressor.decompress(parts, scheme)["weight"].numpy()
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            check(f"compressed-tensors, {stem}", 0 < error < 0.13, error)
    print(f"{passed} passed, {len(failures)} failed, 0 skipped")
    sys.exit(1 if failures else 0)


main()
