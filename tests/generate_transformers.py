# Greedy generation against Transformers': tiny random Llamas and GPT-2s, the same tokens and probabilities.
# tier: oracles
# timeout: 280
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
LLAMA = dict(vocab_size=211, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=8,
             num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5, initializer_range=0.2,
             bos_token_id=None, eos_token_id=None)
GPT2 = dict(vocab_size=211, n_embd=64, n_layer=3, n_head=4, n_positions=256, initializer_range=0.2, bos_token_id=None,
            eos_token_id=None)
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "llama_heads": lambda: LlamaForCausalLM(LlamaConfig(**{**LLAMA, "num_key_value_heads": 8})),
    "llama_one_key_head": lambda: LlamaForCausalLM(LlamaConfig(**{**LLAMA, "num_key_value_heads": 1})),
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True)),
    "llama_wide_heads": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, head_dim=20, attention_bias=True)),
    "llama_linear": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, rope_scaling={"rope_type": "linear", "factor": 4.0})),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32})),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gpt2_untied": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, tie_word_embeddings=False, activation_function="relu")),
}
NEW = 60


def main():
    passed, failures = 0, []
    for name, make in MODELS.items():
        torch.manual_seed(5)
        model = make().eval()
        prompts = [torch.randint(0, 211, (1, n)) for n in (1, 7, 40, 150)]
        with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
            model.save_pretrained(scratch)
            lines = Path(scratch) / "prompts.jsonl"
            lines.write_text("".join(json.dumps({"prompt_ids": p[0].tolist()}) + "\n" for p in prompts))
            words = [TRIREME, "generate", scratch, "--batch-file", lines, "--max-tokens", str(NEW), "--json"]
            done = subprocess.run([*words, "--chunk", "32"], capture_output=True, text=True)
            if done.returncode != 0:
                failures.append(f"{name}: {done.stderr}")
                continue
            for prompt, line in zip(prompts, done.stdout.splitlines()):
                got = json.loads(line)
                everything = torch.ones_like(prompt)
                want = model.generate(prompt, attention_mask=everything, max_new_tokens=NEW, do_sample=False,
                                      pad_token_id=0)[0]
                chances = model(want[None])[0].double().log_softmax(-1)[0]
                n = prompt.shape[1]
                score = sum(chances[n - 1 + i, t].item() for i, t in enumerate(want[n:].tolist()))
                same = got["tokens"] == want[n:].tolist()
                near = abs(got["log_probability"] - score) < 1e-5 * NEW
                passed += same and near
                if not same or not near:
                    failures.append(f"{name}, prompt of {n}: {got}, want {want[n:].tolist()} {score}")
    for failure in failures:
        print("FAILED", failure[:2000])
    print(f"{passed} passed, {len(failures)} failed, 0 skipped")
    sys.exit(1 if failures else 0)


main()
