# Every form of decoder against Transformers on a small random model: logits of whole sequences, 64 greedy tokens
# decoded with pages, on one rank, on two by heads, by experts and by layers, and on four; what is exported loads in
# Transformers again; what is not known is refused by name.
# tier: oracles
# timeout: 900
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
VOCABULARY, NEW = 211, 64
CONTEXT, STEPS = 48, 4  # of training
SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=8,
             num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, bos_token_id=None,
             eos_token_id=None, pad_token_id=None)
FULL, WINDOW = "full_attention", "sliding_attention"


def rope(**kind):
    return {"rope_parameters": {"rope_theta": 10000.0, **kind}}


def make(family, **options):
    """A model of random weights whose norms and biases are not trivial."""
    config = getattr(tf, family + "TextConfig", None) or getattr(tf, family + "Config")
    # Only the plain form of attention caps scores.
    config = config(**{**SIZES, **options}, attn_implementation="eager")
    model = getattr(tf, family + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn_like(p))
            elif name.endswith(("gate.weight", "router.weight")) and p.shape[0] < 16:
                p.normal_(std=0.5)
            elif name.endswith("_bias"):  # of experts
                p.normal_(std=0.3)
    return model


PHI3 = rope(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[1.0, 2.0, 4.0, 8.0])
NEOX = dict(num_key_value_heads=None, tie_word_embeddings=False)
PLAIN = dict(num_key_value_heads=None, intermediate_size=None)  # of models that name these sizes otherwise
OSS = dict(num_local_experts=6, num_experts_per_tok=2, head_dim=16, intermediate_size=40, num_hidden_layers=4,
           sliding_window=20, **rope(rope_type="yarn", factor=4.0, truncate=False, beta_fast=32.0, beta_slow=1.0,
                                     original_max_position_embeddings=64))
FORMS = {
    "llama": lambda: make("Llama"),
    "llama_biases": lambda: make("Llama", attention_bias=True, mlp_bias=True, head_dim=12),
    "smollm2": lambda: make("Llama", tie_word_embeddings=True),
    "llama_dynamic": lambda: make("Llama", **rope(rope_type="dynamic", factor=4.0)),
    "llama_yarn": lambda: make("Llama", **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama_yarn_gain": lambda: make("Llama", **rope(rope_type="yarn", factor=8.0, beta_fast=16.0, beta_slow=2.0,
                                                    attention_factor=1.2, original_max_position_embeddings=32)),
    "llama3": lambda: make("Llama", **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=32)),
    "mistral": lambda: make("Mistral", sliding_window=24),
    "mistral_all": lambda: make("Mistral", sliding_window=None, head_dim=16),
    "qwen2": lambda: make("Qwen2", tie_word_embeddings=True),
    "qwen2_windows": lambda: make("Qwen2", use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": lambda: make("Qwen3", head_dim=16),
    "qwen3_moe": lambda: make("Qwen3Moe", head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                              norm_topk_prob=True, mlp_only_layers=[1]),
    "qwen3_moe_plain": lambda: make("Qwen3Moe", head_dim=16, num_experts=5, num_experts_per_tok=3,
                                    moe_intermediate_size=24),
    "mixtral": lambda: make("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "phi3": lambda: make("Phi3", sliding_window=30),
    "phi3_longrope": lambda: make("Phi3", original_max_position_embeddings=256,
                                  **{**PHI3, "max_position_embeddings": 1024}),
    "phi4_part": lambda: make("Phi3", **rope(rope_type="default", partial_rotary_factor=0.5)),
    "gemma2": lambda: make("Gemma2", head_dim=16, sliding_window=24, query_pre_attn_scalar=24,
                           attn_logit_softcapping=5.0, final_logit_softcapping=8.0),
    "gemma3": lambda: make("Gemma3", head_dim=16, sliding_window=20, query_pre_attn_scalar=24, num_hidden_layers=4,
                           layer_types=[WINDOW, FULL, WINDOW, FULL]),
    "gpt_neox": lambda: make("GPTNeoX", **NEOX),
    "gpt_neox_serial": lambda: make("GPTNeoX", **NEOX, use_parallel_residual=False, hidden_act="gelu_new"),
    "gpt_oss": lambda: make("GptOss", **OSS),
    "gptj": lambda: make("GPTJ", **PLAIN, rotary_dim=4),
    "olmo2": lambda: make("Olmo2"),
    "granite": lambda: make("Granite", embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.4,
                            attention_multiplier=0.2),
    "stablelm": lambda: make("StableLm", use_qkv_bias=True, head_dim=None, **rope(partial_rotary_factor=0.5)),
    "stablelm_parallel": lambda: make("StableLm", use_parallel_residual=True, **rope(partial_rotary_factor=0.25)),
    "starcoder2": lambda: make("Starcoder2", sliding_window=24),
    "phi": lambda: make("Phi", **rope(partial_rotary_factor=0.5)),
    "cohere": lambda: make("Cohere", logit_scale=0.25),
    "opt": lambda: make("OPT", **PLAIN, ffn_dim=112),
    "falcon": lambda: make("Falcon", **PLAIN, ffn_hidden_size=112),
    "falcon_heads": lambda: make("Falcon", **PLAIN, new_decoder_architecture=True, num_kv_heads=2),
    "falcon_serial": lambda: make("Falcon", **PLAIN, parallel_attn=False, bias=True),
    "qwen2_moe": lambda: make("Qwen2Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                              shared_expert_intermediate_size=40),
}
REFUSED = {
    "a scale nobody knows": ({"residual_multiplier": 0.5}, "residual_multiplier"),
    "stored in 4 bits": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "another rope": ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
    "another model": ({"model_type": "mpt"}, "mpt"),
    "another activation": ({"hidden_act": "quick_gelu"}, "quick_gelu"),
}
# Forms that a GGUF file cannot tell of.
NO_GGUF = {"phi3_longrope", "gpt_neox", "gpt_neox_serial", "qwen2_windows", "gptj", "opt", "falcon_serial"}
passed, failures = 0, []


def count(ok, what):
    global passed
    passed += bool(ok)
    if not ok:
        failures.append(what)
        print("FAILED", what[:1000], flush=True)


def trireme(*words):
    done = subprocess.run([TRIREME, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.returncode} {done.stderr[:600]}")
    return done.stdout


def whole_sequences(name, model, directory, scratch):
    ids = torch.randint(1, VOCABULARY, (2, 90))
    np.save(scratch / "ids.npy", ids.numpy())
    trireme("run", directory, "--input", f"input_ids={scratch}/ids.npy", "--output", scratch / "out")
    got, want = np.load(scratch / "out" / "logits.npy"), model(ids).logits.numpy()
    error = np.abs(got - want).max() / np.abs(want).max()
    count(error < 2e-5, f"{name}: logits differ by {error:.3g}")


def greedy(name, model, directory, scratch):
    prompts = [torch.randint(1, VOCABULARY, (1, n)) for n in (1, 9, 100)]
    wants = [model.generate(p, attention_mask=torch.ones_like(p), max_new_tokens=NEW, do_sample=False,
                            pad_token_id=0)[0, p.shape[1]:].tolist() for p in prompts]
    lines = scratch / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt_ids": p[0].tolist()}) + "\n" for p in prompts))
    layouts = [("--tp", tp, "--pp", pp) for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2))]
    experts = getattr(model.config, "num_experts", None) or getattr(model.config, "num_local_experts", None) or 1
    if experts % 2 == 0:
        layouts += [("--ep", 2), ("--tp", 2, "--ep", 2, "--pp", 2)]
    for layout in layouts:
        out = trireme("generate", directory, "--batch-file", lines, "--max-tokens", NEW, "--json", "--chunk", 32,
                      *layout)
        for want, line in zip(wants, out.splitlines(), strict=True):
            got = json.loads(line)["tokens"]
            first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
            count(got == want, f"{name}, {layout}: tokens differ from the {first}th on")


def trained(name, model, directory, scratch):
    """Four steps of gradient descent on one sequence: the same losses, and weights, as PyTorch."""
    characters = [chr(ord("A") + i) for i in np.random.default_rng(3).permutation(CONTEXT)]
    (scratch / "text").write_text("".join(characters) * 20)
    config = {"run": {"steps": STEPS, "name": "x", "directory": str(scratch / "run")},
              "model": {"source": str(directory)}, "batch": {"global": 2},
              "data": {"path": str(scratch / "text"), "format": "characters", "context": CONTEXT},
              "optimizer": {"kind": "sgd", "momentum": 0.0}, "schedule": {"kind": "constant", "lr": 0.02}}
    (scratch / "train.yaml").write_text(json.dumps(config))
    trireme("train", scratch / "train.yaml", "--quiet")
    logged = [json.loads(line) for line in (scratch / "run" / "log.jsonl").read_text().splitlines()]
    got = [line["loss"] for line in logged if "loss" in line and line.get("step", 0) >= 1][:STEPS]
    ids = torch.tensor([[ord(c) - ord("A") for c in (characters * 2)[:CONTEXT + 1]]])
    want, descent = [], torch.optim.SGD(model.parameters(), lr=0.02)
    with torch.enable_grad():
        for _ in range(STEPS):
            loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
            descent.zero_grad()
            loss.backward()
            descent.step()
            want.append(loss.item())
    count(len(got) == STEPS and np.allclose(got, want, rtol=2e-4), f"{name}: losses {got}, PyTorch's {want}")
    again = type(model).from_pretrained(scratch / "run" / "model" / "x")
    error = max(((p - q).abs().max() / q.abs().max()).item()
                for p, q in zip(again.parameters(), model.parameters(), strict=True))
    count(error < 1e-3, f"{name}: trained weights differ by {error:.3g}")


def as_gguf(name, model, directory, scratch):
    """The same logits from a GGUF file of the same weights."""
    if name in NO_GGUF:
        done = subprocess.run([TRIREME, "quantize", directory, "--to", "f32", "-o", scratch / "x.gguf"],
                              capture_output=True, text=True)
        return count(done.returncode == 4, f"{name}: GGUF {done.returncode} {done.stderr[:300]}")
    trireme("quantize", directory, "--to", "f32", "-o", scratch / "x.gguf")
    trireme("run", scratch / "x.gguf", "--input", f"input_ids={scratch}/ids.npy", "--output", scratch / "gguf")
    got, want = np.load(scratch / "gguf" / "logits.npy"), np.load(scratch / "out" / "logits.npy")
    error = np.abs(got - want).max() / np.abs(want).max()
    count(error < 2e-5, f"{name}: logits of the GGUF file differ by {error:.3g}")


def exported(name, model, directory, scratch):
    trireme("export", directory, scratch / "again")
    again, info = type(model).from_pretrained(scratch / "again", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    same = {n: torch.equal(p, q) for (n, p), q in zip(model.named_parameters(), again.parameters(), strict=True)}
    count(not wrong and all(same.values()), f"{name}: exported, {wrong} {[n for n, ok in same.items() if not ok]}")


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def to_mxfp4(w):
    """[experts, out, in] -> codes, two in a byte, scales of 32 neighbours, and the numbers they stand for."""
    blocks = w.unflatten(2, (-1, 32))
    power = torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 2
    code = ((blocks / 2**power).abs().unsqueeze(-1) - FP4).abs().argmin(-1)
    value = (torch.sign(blocks) * FP4[code] * 2**power).flatten(2)
    code = code + 8 * (blocks < 0)
    packed = (code[..., ::2] | code[..., 1::2] << 4).to(torch.uint8)
    return packed, (power.squeeze(-1) + 127).to(torch.uint8), value


def in_mxfp4(scratch):
    """gpt-oss as it is published, its experts in 4 bits: the tokens of the numbers that they stand for."""
    model = make("GptOss", **{**OSS, "intermediate_size": 64})
    tensors = {}
    for name, p in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = p.detach().clone()
            continue
        tensors[name + "_blocks"], tensors[name + "_scales"], value = to_mxfp4(p.transpose(1, 2))
        p.copy_(value.transpose(1, 2))
    directory = scratch / "model"
    model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    save_file({k: t.contiguous() for k, t in tensors.items()}, directory / "model.safetensors")
    prompt = torch.randint(1, VOCABULARY, (1, 30))
    want = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False,
                          pad_token_id=0)[0, 30:].tolist()
    ids = ",".join(map(str, prompt[0].tolist()))
    for axis, ranks in (("--tp", 1), ("--tp", 2), ("--ep", 2)):
        out = trireme("generate", directory, "--prompt-ids", ids, "--max-tokens", NEW, "--json", "--weight-rows", "f32",
                      axis, ranks)
        count(json.loads(out.splitlines()[0])["tokens"] == want, f"mxfp4, {axis} {ranks}: other tokens")
    shown = trireme("inspect", directory)
    count("mxfp4 -> blocks as stored" in shown and "a token reads" in shown, f"mxfp4: inspect {shown[-600:]}")


def main():
    for name in sys.argv[1:] or FORMS:
        torch.manual_seed(5)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            scratch = Path(folder)
            try:
                model = FORMS[name]()
                # Several files, as large models come.
                model.save_pretrained(scratch / "model", max_shard_size="40KB")
                whole_sequences(name, model, scratch / "model", scratch)
                greedy(name, model, scratch / "model", scratch)
                exported(name, model, scratch / "model", scratch)
                as_gguf(name, model, scratch / "model", scratch)
                trained(name, model, scratch / "model", scratch)
            except Exception as error:
                count(False, f"{name}: {type(error).__name__} {error}")
    torch.manual_seed(6)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        in_mxfp4(Path(folder))
    for what, (change, word) in REFUSED.items():
        with tempfile.TemporaryDirectory() as folder:
            make("Llama").save_pretrained(folder)
            config = Path(folder) / "config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
            done = subprocess.run([TRIREME, "inspect", folder], capture_output=True, text=True)
            count(done.returncode == 4 and word in done.stderr, f"{what}: {done.returncode} {done.stderr[:300]}")
    print(f"{passed} passed, {len(failures)} failed, 0 skipped")
    sys.exit(1 if failures else 0)


main()
