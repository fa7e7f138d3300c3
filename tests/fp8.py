# Models with products on 8-bit floats: a real encoder's sentences, a served network, a language model's tokens.
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
import tritonclient.http as triton
from onnx import TensorProto, helper

from _serving import ROOT, TRIREME, Server, Skip, encoder_dir, run_cases, save, temporary, value

scratch = tempfile.TemporaryDirectory(prefix="fp8")
ROOM = Path(scratch.name)
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))


def trireme(*args):
    done = subprocess.run([TRIREME, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sentences_are_near():
    """Cosines of MiniLM's sentence vectors to those of f32: 0.9999 in bf16, 0.996 in fp8."""
    rng = np.random.default_rng(3)
    ids, mask = rng.integers(999, 20000, (4, 32)), np.ones((4, 32), np.int64)
    ids[1, 20:] = mask[1, 20:] = 0
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        np.save(ROOM / f"{name}.npy", array.astype(np.int64))
    found = {}
    for precision in ("f32", "bf16", "fp8"):
        to = ROOM / precision
        trireme("run", encoder_dir(), "--precision", precision, "--output", to, "--input",
                f"input_ids={ROOM}/input_ids.npy", "--input", f"attention_mask={ROOM}/attention_mask.npy")
        vectors = np.load(to / "sentence_embedding.npy").astype(np.float64)
        found[precision] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    worst = {name: (found[name] * found["f32"]).sum(1).min() for name in ("bf16", "fp8")}
    assert 0.99 < worst["fp8"] < worst["bf16"] - 1e-4, worst


def served_by_a_parameter():
    """Three products; rows of very different sizes, as each has its own scale; answers do not know their mates."""
    rng = np.random.default_rng(5)
    weights = [rng.normal(size=(32, 32)).astype(np.float32) * scale for scale in (0.01, 50, 0.2)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(3)]
    repository = temporary()
    save(nodes, [value("x0", TensorProto.FLOAT, ["batch", 32])], [value("x3", TensorProto.FLOAT, ["batch", 32])],
         repository / "net" / "1" / "model.onnx",
         [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)])
    (repository / "net" / "config.pbtxt").write_text(
        'max_batch_size: 8\nparameters { key: "precision" value { string_value: "fp8" } }\n')
    rows = (rng.normal(size=(5, 32)) * 10.0 ** np.arange(-2, 3)[:, None]).astype(np.float32)
    want = rows.astype(np.float64) @ weights[0] @ weights[1] @ weights[2]

    def answer(client, x):
        sent = triton.InferInput("x0", x.shape, "FP32")
        sent.set_data_from_numpy(x)
        return client.infer("net", [sent]).as_numpy("x3")

    with Server(repository) as server:
        client = triton.InferenceServerClient(server.address)
        got = answer(client, rows)
        off = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
        assert (off > 0.005).all() and (off < 0.2).all(), off  # bf16: 0.003
        for i in range(5):
            np.testing.assert_array_equal(answer(client, rows[i:i + 1])[0], got[i])


def tokens_are_those_of_f32():
    """A story's first tokens; the later ones may differ."""
    model = SHARED / "llm/stories260K/hf"
    if not model.is_dir():
        raise Skip("no small language model in TRIREME_SHARED_DATA")
    said = {p: json.loads(trireme("generate", model, "--prompt-ids", "1,403,407,261,378", "--max-tokens", 12, "--json",
                                  "--precision", p).splitlines()[-1]) for p in ("f32", "fp8")}
    assert said["f32"]["tokens"][:8] == said["fp8"]["tokens"][:8], said
    assert 1e-4 < abs(said["f32"]["log_probability"] - said["fp8"]["log_probability"]) < 0.5, said


run_cases([(case.__name__, case) for case in [sentences_are_near, served_by_a_parameter, tokens_are_those_of_f32]])
