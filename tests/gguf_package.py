# GGUF files that trireme writes, read by the Python package gguf: metadata, shapes, types, and numbers bit for bit.
# tier: oracles
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))
FORMATS = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4"]
passed, failures = 0, []


def check(what, ok, detail=""):
    global passed
    passed += bool(ok)
    if not ok:
        failures.append(f"{what}: {detail}"[:1000])


def values(gguf, tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def main():
    given = SHARED / "llm/stories260K/stories260K.gguf"
    try:
        import gguf
    except ImportError:
        return print("skipped: no Python package gguf\n0 passed, 0 failed, 1 skipped")
    if not given.exists():
        return print(f"skipped: no {given}\n0 passed, 0 failed, 1 skipped")
    source = gguf.GGUFReader(given)
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "x.gguf"
            subprocess.run([TRIREME, "quantize", given, "--to", name, "-o", file], check=True,
                           stdout=subprocess.DEVNULL)
            written = gguf.GGUFReader(file)
            for key, field in source.fields.items():
                if key.startswith(("GGUF.", "general.file_type", "general.quantization_version")):
                    continue
                check(f"{name} {key}", written.fields[key].contents() == field.contents())
            tensors = {t.name: t for t in written.tensors}
            check(f"{name} tensors", tensors.keys() == {t.name for t in source.tensors})
            for t in source.tensors:
                got = tensors[t.name]
                kind = "F32" if len(t.shape) == 1 else name.upper()
                if t.shape[0] % 32 != 0 and kind not in ("F32", "F16", "BF16"):
                    kind = "F16"  # rows that are no whole blocks
                check(f"{name} {t.name}", list(got.shape) == list(t.shape) and got.tensor_type.name == kind,
                      f"{got.shape} {got.tensor_type}")
                plain = values(gguf, t).astype(np.float32)
                if kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
                    want = gguf.quants.quantize(plain, got.tensor_type)
                    check(f"{name} {t.name} bytes", np.array_equal(got.data.view(np.uint8), want.view(np.uint8)))
                error = np.linalg.norm(values(gguf, got) - plain) / np.linalg.norm(plain)
                check(f"{name} {t.name} error", error < 0.16, error)
            del written, tensors, got
    for failure in failures:
        print("FAILED", failure)
    print(f"{passed} passed, {len(failures)} failed, 0 skipped")
    sys.exit(1 if failures else 0)


main()
