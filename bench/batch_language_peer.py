"""llama.cpp over prompts, as an engineer writes it in place of a batch job: for bench/batch.py.

batch_language_peer.py write FILE SHAPE: a GGUF file (q8_0) of random weights; its vocabulary has the words w0, w1, ….
batch_language_peer.py run SETTINGS: reads the texts of JSON lines, continues each by the likeliest tokens, as many at a
time as `sequences`, a new one as soon as one has ended, and writes JSON lines. SETTINGS is JSON: input, output, model,
threads, sequences, tokens, flash (1: flash attention, 0: without). Prints one JSON line: rows, and the seconds from
the first read to the last write.
"""
import ctypes
import json
import sys
import time

from language_peer import Batch, shape_of, write

MOST = 512  # tokens of a step


def write_model(path, shape):
    """Words are reached by merges from the left, each of which is a token itself: "▁", "▁w", "▁w1", "▁w12"."""
    words = ["▁", "w", *"0123456789", "▁w"]
    words += [f"▁w{i}" for i in range(shape["vocabulary"] - len(words) - 3)]
    write(path, "q8_0", shape, words)


class Texts:
    """A model that continues texts side by side."""

    def __init__(self, settings):
        import llama_cpp as llama
        self.llama = llama
        llama.llama_backend_init()
        self.log = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self.log, ctypes.c_void_p(0))
        self.model = llama.llama_model_load_from_file(settings["model"].encode(), llama.llama_model_default_params())
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        options = llama.llama_context_default_params()
        self.sequences, self.tokens = settings["sequences"], settings["tokens"]
        options.n_ctx = self.sequences * 512
        options.n_batch = options.n_ubatch = MOST
        options.n_seq_max = self.sequences
        options.n_threads = options.n_threads_batch = settings["threads"]
        options.flash_attn_type = settings["flash"]
        self.context = llama.llama_init_from_model(self.model, options)
        self.memory = llama.llama_get_memory(self.context)
        self.sampler = llama.llama_sampler_init_greedy()
        self.batch, self.end = Batch(llama, MOST), llama.llama_vocab_eos(self.vocabulary)

    def ids(self, text):
        raw = text.encode()
        out = (self.llama.llama_token * (len(raw) + 8))()
        count = self.llama.llama_tokenize(self.vocabulary, raw, len(raw), out, len(out), True, False)
        return list(out[:count])

    def piece(self, token):
        out = ctypes.create_string_buffer(64)
        count = self.llama.llama_token_to_piece(self.vocabulary, token, out, len(out), 0, False)
        return out.raw[:count]

    def run(self, texts, write_answer):
        """Continuous batching: each step holds the next token of every text under way, then parts of new prompts."""
        waiting, under_way, free = iter(enumerate(texts)), {}, list(range(self.sequences))
        more = True
        while more or under_way:
            step, asks = [], []
            for sequence, state in under_way.items():
                if not state["prompt"]:
                    asks.append((len(step), sequence))
                    step.append((state["last"], state["at"], sequence, True))
                    state["at"] += 1
            while len(step) < MOST:
                begun = next((s for s, state in under_way.items() if state["prompt"]), None)
                if begun is None:
                    if not free or (found := next(waiting, None)) is None:
                        more = more and bool(not free)
                        break
                    begun = free.pop()
                    under_way[begun] = {"row": found[0], "prompt": self.ids(found[1]), "at": 0, "answer": []}
                state = under_way[begun]
                part, state["prompt"] = (state["prompt"][:MOST - len(step)], state["prompt"][MOST - len(step):])
                for i, token in enumerate(part):
                    is_last = not state["prompt"] and i + 1 == len(part)
                    if is_last:
                        asks.append((len(step), begun))
                    step.append((token, state["at"], begun, is_last))
                    state["at"] += 1
            if not step:
                break
            if self.llama.llama_decode(self.context, self.batch.fill(step)) != 0:
                raise RuntimeError("llama_decode failed")
            for place, sequence in asks:
                state = under_way[sequence]
                token = self.llama.llama_sampler_sample(self.sampler, self.context, place)
                if token != self.end:
                    state["answer"].append(token)
                state["last"] = token
                if token == self.end or len(state["answer"]) >= self.tokens:
                    answer = b"".join(self.piece(t) for t in state["answer"])
                    write_answer(state["row"], answer.decode("utf-8", "replace"), len(state["answer"]))
                    self.llama.llama_memory_seq_rm(self.memory, sequence, -1, -1)
                    del under_way[sequence]
                    free.append(sequence)


def run(settings):
    texts = Texts(settings)
    begin, rows, tokens = time.monotonic(), 0, 0
    with open(settings["input"], encoding="utf-8") as file, open(settings["output"], "w", encoding="utf-8") as out:
        def write_answer(row, text, count):
            nonlocal rows, tokens
            rows, tokens = rows + 1, tokens + count
            out.write(json.dumps({"row": row, "text": text, "tokens": count}) + "\n")
        texts.run((json.loads(line)["prompt"] for line in file), write_answer)
    print(json.dumps({"rows": rows, "tokens": tokens, "seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_model(sys.argv[2], shape_of(sys.argv[3]))
    else:
        run(json.loads(sys.argv[2]))
