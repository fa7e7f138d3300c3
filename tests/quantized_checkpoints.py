# Quantized checkpoints (AWQ, GPTQ, compressed-tensors, 8-bit floats) against the same numbers in f32: logits, 64 greedy
# tokens on one rank and two, what is shown of them, what is refused.
import json
import os
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

import _quantized as qz
from _checks import check, finish, trireme

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
VOCABULARY, WIDTH, INNER, NEW = 211, 128, 256, 64
HEADS, KEY_HEADS, DIM = 8, 4, 16
SIZES = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2,
             num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, head_dim=DIM, max_position_embeddings=256,
             rms_norm_eps=1e-6, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False)


def make(kind, rng, halves):
    """A small model: config, plain tensors (matrices rounded to `halves`), names of the layers to quantize."""
    config = {**SIZES, "model_type": kind, "architectures": ["X"], "dtype": "bfloat16"}
    tensors, layers = {}, []

    def add(name, *dims, scale=0.2, layer=True):
        t = rng.normal(size=dims).astype(np.float32) * np.float32(scale)
        tensors[name] = t.astype(halves).astype(np.float32)
        if layer:
            layers.append(name.removesuffix(".weight"))

    add("model.embed_tokens.weight", VOCABULARY, WIDTH, layer=False)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        if kind == "phi3":
            add(f"{at}.self_attn.qkv_proj.weight", (HEADS + 2 * KEY_HEADS) * DIM, WIDTH)
        else:
            for name, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
                add(f"{at}.self_attn.{name}_proj.weight", heads * DIM, WIDTH)
                if kind == "qwen2":
                    add(f"{at}.self_attn.{name}_proj.bias", heads * DIM, layer=False)
        add(f"{at}.self_attn.o_proj.weight", WIDTH, HEADS * DIM, scale=0.1)
        if kind == "mixtral":
            config.update(num_local_experts=4, num_experts_per_tok=2)
            add(f"{at}.block_sparse_moe.gate.weight", 4, WIDTH, layer=False)
            for e in range(4):
                for name, dims in (("w1", (INNER, WIDTH)), ("w2", (WIDTH, INNER)), ("w3", (INNER, WIDTH))):
                    add(f"{at}.block_sparse_moe.experts.{e}.{name}.weight", *dims, scale=0.1)
        elif kind == "phi3":
            add(f"{at}.mlp.gate_up_proj.weight", 2 * INNER, WIDTH)
        else:
            for name in ("gate", "up"):
                add(f"{at}.mlp.{name}_proj.weight", INNER, WIDTH)
        if kind != "mixtral":
            add(f"{at}.mlp.down_proj.weight", WIDTH, INNER, scale=0.1)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = (1 + rng.normal(size=WIDTH) / 8).astype(halves).astype(np.float32)
    tensors["model.norm.weight"] = np.ones(WIDTH, np.float32)
    add("lm_head.weight", VOCABULARY, WIDTH, layer=False)
    return config, tensors, layers


def compressed(weights, kind, activations=None, **more):
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "symmetric": True, **weights},
             "input_activations": activations, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed", **more}


def shuffled(w, seed=7):
    return np.random.default_rng(seed).permutation(w.shape[1])


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True,
       "modules_to_not_convert": ["lm_head"]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": False,
        "checkpoint_format": "gptq", "damp_percent": 0.1, "true_sequential": True, "meta": {"quantizer": ["x:1"]}}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
BLOCKS = {**FP8, "strategy": "block", "block_structure": [128, 128]}
CASES = {  # the form, quantization_config, packer, and what inspect says
    "awq": ("llama", AWQ, lambda w: qz.awq(w, 128), "awq of 4 bits, groups of 128, zero points"),
    "awq_32": ("qwen2", {**AWQ, "group_size": 32}, lambda w: qz.awq(w, 32), "groups of 32"),
    "awq_64_joined": ("phi3", {**AWQ, "group_size": 64}, lambda w: qz.awq(w, 64), "groups of 64"),
    "awq_experts": ("mixtral", AWQ, lambda w: qz.awq(w, 128), "awq of 4 bits"),
    "gptq": ("llama", GPTQ, lambda w: qz.gptq(w, 4, 128), "gptq of 4 bits, groups of 128"),
    "gptq_zeros": ("qwen2", {**GPTQ, "sym": False, "group_size": 32}, lambda w: qz.gptq(w, 4, 32, True), "zero points"),
    "gptq_v2": ("llama", {**GPTQ, "checkpoint_format": "gptq_v2", "sym": False, "group_size": 64},
                lambda w: qz.gptq(w, 4, 64, True, v2=True, has_index=False), "groups of 64, zero points"),
    "gptq_rows": ("llama", {**GPTQ, "group_size": -1}, lambda w: qz.gptq(w, 4, 0), "a scale for each row"),
    "gptq_order": ("llama", {**GPTQ, "desc_act": True, "group_size": 32},
                   lambda w: qz.gptq(w, 4, 32, True, columns=shuffled(w)), "columns in the order of their groups"),
    "gptq_order_joined": ("phi3", {**GPTQ, "desc_act": True}, lambda w: qz.gptq(w, 4, 64, columns=shuffled(w)),
                          "columns in the order of their groups"),
    "gptq_8": ("mixtral", {**GPTQ, "bits": 8}, lambda w: qz.gptq(w, 8, 128), "gptq of 8 bits"),
    "gptq_8_zeros": ("qwen2", {**GPTQ, "bits": 8, "sym": False}, lambda w: qz.gptq(w, 8, 64, True), "zero points"),
    "packed": ("llama", compressed(INT4, "pack-quantized"), lambda w: qz.packed(w, 4, 128),
               "compressed-tensors of 4 bits, groups of 128"),
    "packed_rows": ("qwen2", compressed({**INT4, "strategy": "channel", "group_size": None}, "pack-quantized"),
                    lambda w: qz.packed(w, 4, 0), "a scale for each row"),
    "packed_zeros": ("llama", compressed({**INT4, "symmetric": False, "group_size": 32}, "pack-quantized"),
                     lambda w: qz.packed(w, 4, 32, True), "zero points"),
    "packed_order": ("llama", compressed({**INT4, "actorder": "group"}, "pack-quantized"),
                     lambda w: qz.packed(w, 4, 64, columns=shuffled(w)), "columns in the order of their groups"),
    "packed_8": ("phi3", compressed({**INT4, "num_bits": 8}, "pack-quantized"), lambda w: qz.packed(w, 8, 128),
                 "compressed-tensors of 8 bits"),
    "bytes": ("llama", compressed(INT8, "int-quantized", TOKEN), qz.as_bytes, "a scale for each row"),
    "bytes_zeros": ("mixtral", compressed({**INT8, "symmetric": False}, "int-quantized"),
                    lambda w: qz.as_bytes(w, None, True), "zero points"),
    "fp8_matrix": ("llama", compressed({**FP8, "strategy": "tensor"}, "float-quantized"),
                   lambda w: qz.float8(w, *w.shape), "8-bit floats, one scale"),
    "fp8_rows": ("phi3", compressed(FP8, "float-quantized", {**TOKEN, "type": "float"}),
                 lambda w: qz.float8(w, 1, w.shape[1], scale_type=ml_dtypes.bfloat16), "a scale for each row"),
    "fp8_blocks": ("mixtral", compressed(BLOCKS, "float-quantized"), lambda w: qz.float8(w, 128, 128),
                   "scales of blocks of 128 by 128"),
    "fp8_inverse": ("qwen2", {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                              "weight_block_size": [96, 64], "modules_to_not_convert": ["lm_head"]},
                    lambda w: qz.float8(w, 96, 64, "weight_scale_inv"), "scales of blocks of 96 by 64"),
    "fp8_plain": ("llama", {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
                  lambda w: qz.float8(w, *w.shape), "8-bit floats, one scale"),
}
REFUSED = {
    "another method": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    "another layout of AWQ": ({**AWQ, "version": "gemv"}, "gemv"),
    "3 bits": ({**GPTQ, "bits": 3}, "'3'"),
    "another format of GPTQ": ({**GPTQ, "checkpoint_format": "marlin"}, "marlin"),
    "an option nobody knows": ({**GPTQ, "spiral": 3}, "spiral"),
    "another format": (compressed({"num_bits": 4, "type": "float"}, "nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
    "floats of 4 bits": (compressed({"num_bits": 4, "type": "float"}, "float-quantized"), "float of 4 bits"),
    "sparse weights": (compressed(INT8, "int-quantized", sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24"),
    "quantized keys and values": (compressed(INT8, "int-quantized", kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
}


def logits(directory, scratch, *more):
    trireme("run", directory, "--input", f"input_ids={scratch}/ids.npy", "--output", scratch / "out", *more)
    return np.load(scratch / "out" / "logits.npy")


def tokens(directory, scratch, *more):
    out = trireme("generate", directory, "--batch-file", scratch / "prompts.jsonl", "--max-tokens", NEW, "--json",
                  "--chunk", 32, *more)
    return [json.loads(line)["tokens"] for line in out.splitlines()]


def one(name, scratch):
    form, quantization, pack, said = CASES[name]
    rng = np.random.default_rng(len(name))
    halves = (ml_dtypes.bfloat16, np.float16)[len(name) % 2]
    config, tensors, layers = make(form, rng, halves)
    stored, plain = {}, dict(tensors)
    for key, t in tensors.items():
        layer = key.removesuffix(".weight")
        if key.endswith(".weight") and layer in layers:
            parts, plain[key] = pack(t)
            stored.update({f"{layer}.{part}": p for part, p in parts.items()})
        else:
            stored[key] = t.astype(halves)
    qz.write_model(scratch / "stored", {**config, "quantization_config": quantization}, stored)
    qz.write_model(scratch / "plain", config, plain)
    np.save(scratch / "ids.npy", rng.integers(1, VOCABULARY, (2, 70)))
    (scratch / "prompts.jsonl").write_text("".join(
        json.dumps({"prompt_ids": rng.integers(1, VOCABULARY, n).tolist()}) + "\n" for n in (1, 9, 60)))
    want = logits(scratch / "plain", scratch)
    for ranks in (1, 2):
        got = logits(scratch / "stored", scratch, "--tp", ranks)
        error = np.abs(got - want).max() / np.abs(want).max()
        check(f"{name} --tp {ranks}: logits", error < 1e-5, f"{error:.3g} away")
    greedy = tokens(scratch / "plain", scratch)
    for ranks in (1, 2):
        exact = tokens(scratch / "stored", scratch, "--tp", ranks, "--weight-rows", "f32")
        check(f"{name} --tp {ranks}: tokens", exact == greedy)
        near = tokens(scratch / "stored", scratch, "--tp", ranks)  # whole numbers meet rows in 8 bits
        check(f"{name} --tp {ranks}: tokens of rounded rows",
              any(a[0] == b[0] for a, b in zip(near, greedy)) and [len(t) for t in near] == [len(t) for t in greedy],
              f"{near} for {greedy}")
    if form == "mixtral":  # whole experts on ranks
        got = logits(scratch / "stored", scratch, "--ep", 2)
        error = np.abs(got - want).max() / np.abs(want).max()
        check(f"{name} --ep 2: logits", error < 1e-5, f"{error:.3g} away")
        exact = tokens(scratch / "stored", scratch, "--ep", 2, "--weight-rows", "f32")
        check(f"{name} --ep 2: tokens", exact == greedy)
    shown = trireme("inspect", scratch / "stored")
    check(f"{name}: inspect", said in shown and "a token reads" in shown, shown[-1500:])
    return config, stored, layers


def refusals(scratch):
    config, tensors, _ = make("llama", np.random.default_rng(1), np.float16)
    for what, (quantization, word) in REFUSED.items():
        directory = scratch / what.replace(" ", "_")
        qz.write_model(directory, {**config, "quantization_config": quantization}, tensors)
        said = trireme("inspect", directory, code=4)
        check(what, word in said, said[-400:])


def broken(scratch):
    """Tensors that do not fit are errors of the file that name the layer."""
    config, tensors, layers = make("llama", np.random.default_rng(2), np.float16)
    for what, change in {"scales": lambda p: {**p, "scales": p["scales"][:, 1:]},
                         "zeros": lambda p: {**p, "qzeros": p["qzeros"][:, :1]},
                         "no zeros": lambda p: {k: v for k, v in p.items() if k != "qzeros"},
                         "index": lambda p: {**p, "g_idx": np.minimum(p["g_idx"], 0)}}.items():
        stored = {k: v for k, v in tensors.items() if k.removesuffix(".weight") not in layers}
        for layer in layers:
            parts, _ = qz.gptq(tensors[layer + ".weight"], 4, 32)
            stored.update({f"{layer}.{k}": v for k, v in (change(parts) if "up_proj" in layer else parts).items()})
        directory = scratch / what.replace(" ", "_")
        qz.write_model(directory, {**config, "quantization_config": GPTQ}, stored)
        said = trireme("inspect", directory, code=3 if what == "no zeros" else 2)
        check(f"broken {what}", "mlp.up_proj" in said, said[-400:])


def main():
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            one(name, Path(folder))
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            refusals(Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            broken(Path(folder))
    finish()


main()
