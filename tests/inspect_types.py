# `trireme inspect` of models whose weights are larger than memory: programs need their types alone.
# timeout: 240
import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path

from _serving import TRIREME, run_cases

scratch = tempfile.TemporaryDirectory(prefix="inspect_types")
ROOM = Path(scratch.name)
MOST_KIB = 700 << 10  # resident, of weights of 25 GiB and more
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 5120,
    "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def inspect(*words):
    """What it prints, and the most memory that it held, in KiB."""
    log = ROOM / "peak"
    done = subprocess.run(["python3", "-c", PROBE, str(log), TRIREME, "inspect", *map(str, words)],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, int(log.read_text())


PROBE = """
import pathlib, resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
pathlib.Path(sys.argv[1]).write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def weights():
    """Names and extents of the weights of a Llama of 13 billion parameters."""
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    yield "model.embed_tokens.weight", [CONFIG["vocab_size"], width]
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{name}self_attn.{part}.weight", [width, width]
        yield f"{name}mlp.gate_proj.weight", [inner, width]
        yield f"{name}mlp.up_proj.weight", [inner, width]
        yield f"{name}mlp.down_proj.weight", [width, inner]
        yield f"{name}input_layernorm.weight", [width]
        yield f"{name}post_attention_layernorm.weight", [width]
    yield "model.norm.weight", [width]
    yield "lm_head.weight", [CONFIG["vocab_size"], width]


def directory(name, has_weights):
    """config.json, and a checkpoint in bf16 that is a hole behind its header."""
    folder = ROOM / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if has_weights:
        header, at = {}, 0
        for weight, dims in weights():
            size = 2
            for extent in dims:
                size *= extent
            header[weight] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64)
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
    return folder


def held(text):
    """MiB of weights that a rank says it holds."""
    line = next(line for line in text.splitlines() if line.startswith("this rank holds"))
    return float(line.split()[3])


def a_rank_of_a_checkpoint_that_is_a_hole():
    folder = directory("hole", True)
    used = os.stat(folder / "model.safetensors").st_blocks * 512
    assert used < 1 << 20, f"the file system keeps no holes: {used} bytes"
    text, peak = inspect(folder, "--ranks", "tp=8", "--rank", 3, "--dim", "seq=64", "--program")
    assert "rank 3 of 8" in text and "all_reduce" in text, text[:300]
    assert 2900 < held(text) < 3500, held(text)  # an eighth of 26 GB in bf16
    assert peak < MOST_KIB, f"{peak} KiB"


def one_rank_of_it():
    text, peak = inspect(ROOM / "hole", "--program", "--memory", "--why", "--dim", "seq=16")
    assert "weight_only_linear" in text, text[:300]
    assert peak < MOST_KIB, f"{peak} KiB"


def a_directory_without_weights():
    folder = directory("bare", False)
    text, peak = inspect(folder, "--ranks", "tp=4,pp=2", "--rank", 7, "--dim", "seq=16")
    assert "rank 7 of 8: pp 1/2 tp 3/4" in text, text[:300]
    assert 5800 < held(text) < 7000, held(text)  # an eighth of 52 GB in f32
    assert peak < MOST_KIB, f"{peak} KiB"
    refused = subprocess.run([TRIREME, "run", str(folder)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 3 and "model.safetensors" in refused.stderr, refused.stderr[-500:]


def a_network_of_the_zoo():
    network = "zoo:llama:width=8192,layers=80,heads=64,kv_heads=8,inner=28672,vocabulary=128256,is_tied=false"
    text, peak = inspect(network, "--ranks", "tp=8", "--rank", 7, "--dim", "seq=32")
    assert held(text) > 30000, held(text)  # an eighth of 70 billion in f32
    assert peak < MOST_KIB, f"{peak} KiB"


def batches_of_networks_of_the_zoo():
    for network in ("nanogpt", "gpt2:layers=1", "bert:layers=1", "llama:layers=1", "vit_tiny", "resnet8"):
        text, _ = inspect(f"zoo:{network}", "--batch", 2, "--memory", "--program", "--why")
        assert "planned peak" in text and "rows of a batch are independent" in text, (network, text[-300:])


run_cases([(case.__name__, case) for case in [
    a_rank_of_a_checkpoint_that_is_a_hole, one_rank_of_it, a_directory_without_weights, a_network_of_the_zoo,
    batches_of_networks_of_the_zoo]])
