#!/usr/bin/env python3
"""llama.cpp for bench/language.py. language_peer.py write FILE FORMAT SHAPE: a GGUF file of random weights of a shape.
language_peer.py run FILE THREADS PROMPT NEW BATCH SEED FLASH: reads random prompts, then decodes, with flash attention
(1) or without (0); prints one JSON object.

SHAPE: vocabulary=32000,width=2048,layers=22,heads=32,kv_heads=4,inner=5632,positions=2048; is_tied=1: the embedding is
the head, too. Blocks of formats that the package gguf does not encode get random codes under small scales, which cost
the same. Tokens are words of up to three letters: texts have tokens, and every token has a text.
"""
import ctypes
import itertools
import json
import statistics
import sys
import time

import numpy


def shape_of(text):
    return {name: int(value) for name, value in (pair.split("=") for pair in text.split(","))}


def random_matrix(rng, kind, rows, depth):
    """A matrix of a type of GGUF; as f32 where it is one of floats."""
    import gguf
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    name = kind.name
    if name in ("F32", "BF16", "F16", "Q8_0", "Q4_0"):
        return gguf.quantize(rng.standard_normal((rows, depth), dtype=numpy.float32) * numpy.float32(0.02), kind)
    blocks = rng.integers(0, 256, (rows * depth // weights, size), dtype=numpy.uint8)
    scale = numpy.frombuffer(numpy.float16(0.0001).tobytes(), dtype=numpy.uint8)
    at = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[name]
    for first in at:
        blocks[:, first:first + 2] = scale
    return blocks.reshape(rows, depth // weights * size)


def vocabulary(size):
    """Special tokens, a line's end, and words of letters (\u2581: a space), the short ones first."""
    letters = "\u2581" + "abcdefghijklmnopqrstuvwxyz"
    words = ("".join(word) for length in (1, 2, 3) for word in itertools.product(letters, repeat=length))
    tokens = [*itertools.islice(itertools.chain(["<unk>", "<s>", "</s>", "\n"], words), size)]
    return tokens + [f"t{i}" for i in range(size - len(tokens))]


def write(path, form, shape, words=()):
    """`words`: the vocabulary behind the three special tokens, of any length up to the shape's; none: vocabulary()."""
    import gguf
    rng = numpy.random.default_rng(1)
    kind = gguf.GGMLQuantizationType[form.upper()]
    w = gguf.GGUFWriter(path, "llama")
    heads, kv_heads, width = shape["heads"], shape["kv_heads"], shape["width"]
    w.add_context_length(shape["positions"])
    w.add_embedding_length(width)
    w.add_block_count(shape["layers"])
    w.add_feed_forward_length(shape["inner"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(width // heads)
    w.add_vocab_size(shape["vocabulary"])
    w.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *words] if words else vocabulary(shape["vocabulary"])
    tokens += [f"t{i}" for i in range(shape["vocabulary"] - len(tokens))]
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(len(tokens))])
    w.add_token_types([2, 3, 3] + [1] * (len(tokens) - 3))

    def add(name, rows, depth):
        w.add_tensor(name, random_matrix(rng, kind, rows, depth), raw_dtype=kind)

    def norm(name):
        w.add_tensor(name, numpy.ones(width, dtype=numpy.float32))
    add("token_embd.weight", shape["vocabulary"], width)
    if not shape.get("is_tied"):
        add("output.weight", shape["vocabulary"], width)
    norm("output_norm.weight")
    kv_width = width // heads * kv_heads
    for i in range(shape["layers"]):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        for name, rows, depth in (("attn_q", width, width), ("attn_k", kv_width, width), ("attn_v", kv_width, width),
                                  ("attn_output", width, width), ("ffn_gate", shape["inner"], width),
                                  ("ffn_up", shape["inner"], width), ("ffn_down", width, shape["inner"])):
            add(f"blk.{i}.{name}.weight", rows, depth)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Batch:
    """Tokens of several sequences for one call; the last of each sequence asks for logits."""

    def __init__(self, llama, most):
        self.llama, self.batch = llama, llama.llama_batch_init(most, 0, 1)

    def fill(self, tokens):
        """[(token, position, sequence, wants logits)]"""
        b = self.batch
        b.n_tokens = len(tokens)
        for i, (token, position, sequence, wants) in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0] = token, position, 1, sequence
            b.logits[i] = wants
        return b


def run(path, threads, prompt, fresh, sequences, seed, flash):
    import llama_cpp as llama
    llama.llama_backend_init()
    log = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(log, ctypes.c_void_p(0))
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    options = llama.llama_context_default_params()
    options.n_ctx = sequences * (prompt + fresh + 16)
    options.n_batch = options.n_ubatch = 512
    options.n_seq_max = sequences
    options.n_threads = options.n_threads_batch = threads
    options.flash_attn_type = flash
    context = llama.llama_init_from_model(model, options)
    memory = llama.llama_get_memory(context)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = Batch(llama, 512)
    rng = numpy.random.default_rng(seed)

    def decode(tokens):
        if llama.llama_decode(context, batch.fill(tokens)) != 0:
            raise RuntimeError("llama_decode failed")
        llama.llama_synchronize(context)

    def measure():
        llama.llama_memory_clear(memory, True)
        prompts = rng.integers(3, vocabulary, (sequences, prompt))
        start = time.perf_counter()
        for s in range(sequences):
            for first in range(0, prompt, 512):
                part = prompts[s][first:first + 512]
                decode([(int(t), first + i, s, first + i == prompt - 1) for i, t in enumerate(part)])
        read_s = time.perf_counter() - start
        steps = []
        for step in range(fresh):
            tokens = [(int(rng.integers(3, vocabulary)), prompt + step, s, True) for s in range(sequences)]
            start = time.perf_counter()
            decode(tokens)
            steps.append(time.perf_counter() - start)
        return read_s, statistics.median(steps)
    measure()
    read_s, step_s = measure()
    print(json.dumps({"prefill_tokens_s": sequences * prompt / read_s, "decode_tokens_s": sequences / step_s}))


def main():
    what, path, *rest = sys.argv[1:]
    if what == "write":
        write(path, rest[0], shape_of(rest[1]))
    else:
        run(path, *(int(x) for x in rest))


if __name__ == "__main__":
    main()
