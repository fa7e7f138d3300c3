#!/usr/bin/env python3
"""Writes src/data/testdata/bpe_vectors.json: byte pair tokenizers, texts, what Hugging Face's make of them.

Usage: bpe_vectors.py TEXT TOKENIZERS > src/data/testdata/bpe_vectors.json   (tokenizers 0.23.3)
TEXT trains small tokenizers of each kind, which the file holds whole. TOKENIZERS is a directory with phi-3-mini, gpt2
and qwen2.5, whose files stay there.
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIAL = ["<unk>", "<s>", "</s>"]

HARD = [
    "", " ", "  ", "\n", "\t\n\r\n", "Hello, World!", " Hello", "  two  spaces  ",
    "don't I'LL we'Ve you're 'S'T'd",
    "It's 1234567 and 3.14159, 10,000!", "\n\n  indented\n    more\r\n\r\nend\n", "a\n b \n\n c   \n", "   \n   x",
    "na\u00efve re\u0301sume\u0301 \u00c5ngstr\u00f6m \u1e9e \ufb01ne \u017fo 'ſ",
    "\u4f60\u597d\u4e16\u754c\u3002abc\u4e2d\u6587",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0661\u0662\u0663 \u2167 \u00bd",
    "\u00a0nbsp\u2003em\u3000wide\u200bzero", "!!!???...\n\n...", "<s>marked</s> <unk>x",
    " <s> a </s>b", "<|end|> after  <|end|>",
    "x<mask>y <mask> z", "\u2581already\u2581marked", " \u2581x",
    "tab\tin\tthe middle", "CamelCaseWORDS snake_case_words",
    "antidisestablishmentarianism" * 4, "\x00\x01\x7f",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "e\u0301\u0323 q\u0307\u0323",
]


def texts(rng):
    pools = [range(0x20, 0x7F)] * 4 + [range(0x61, 0x7B)] * 4 + [range(9, 14), range(0x20, 0x21), range(0x30, 0x3A),
             range(0xA0, 0x250), range(0x370, 0x530), range(0x2000, 0x2070),
             range(0x4E00, 0x4E40), range(0x1F600, 0x1F640)]
    out = list(HARD)
    for _ in range(60):
        text = ""
        for _ in range(rng.randrange(1, 14)):
            pool = rng.choice(pools)
            text += "".join(chr(rng.choice(pool)) for _ in range(rng.randrange(1, 6)))
        out.append(text)
    return out


def trained(lines, pattern, normalizer=None, bos=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    if pattern == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if bos:
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, t.token_to_id(bos))])])
    t.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    t.add_tokens([AddedToken("<mask>", lstrip=True, single_word=True, normalized=False)])
    return t


def sentence_piece(lines, legacy):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL + [f"<0x{b:02X}>" for b in range(256)],
                                  show_progress=False, limit_alphabet=80)
    t.pre_tokenizer = pre_tokenizers.Metaspace()  # keeps merges of training within words
    t.train_from_iterator(lines, trainer)
    plain = json.loads(t.to_str())
    plain["added_tokens"] = plain["added_tokens"][:3]  # bytes are no special tokens
    t = Tokenizer.from_str(json.dumps(plain))
    if legacy:
        t.pre_tokenizer = None
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>" if legacy else "<s> $A",
                                                     special_tokens=[("<s>", 1), ("</s>", 2)])
    t.add_tokens([AddedToken("<mask>", lstrip=True, single_word=True, normalized=False)])
    return t


def metaspace(lines):
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))
    return t


def cases(t, rng):
    out = []
    for text in texts(rng):
        ids = t.encode(text).ids
        out.append({"text": text, "ids": ids, "decoded": t.decode(ids)})
    size = t.get_vocab_size()
    for _ in range(40):
        ids = [rng.randrange(size) for _ in range(rng.randrange(1, 12))]
        out.append({"ids": ids, "decoded": t.decode(ids)})
    return out


def merges_directory(path, qwen):
    with open(f"{path}/vocab.json") as f:
        vocab = json.load(f)
    with open(f"{path}/merges.txt") as f:
        merges = [tuple(line.rstrip("\n").split(" ")) for line in f if not line.startswith("#version") and line.strip()]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    if qwen:
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        with open(f"{path}/tokenizer_config.json") as f:
            added = json.load(f)["added_tokens_decoder"]
        for token in sorted(added.items(), key=lambda kv: int(kv[0])):
            make = t.add_special_tokens if token[1]["special"] else t.add_tokens
            make([AddedToken(token[1]["content"], normalized=token[1]["normalized"], special=token[1]["special"])])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.add_special_tokens(["<|endoftext|>"])
    t.decoder = decoders.ByteLevel()
    return t


def main():
    with open(sys.argv[1]) as f:
        lines = f.read(60000).splitlines(keepends=True)
    rng = random.Random(7)
    small = {
        "gpt2": trained(lines, "gpt2"),
        "llama3": trained(lines, LLAMA3, bos="<s>", ignore_merges=True),
        "qwen2": trained(lines, QWEN2, normalizer=normalizers.NFC()),
        "sentencepiece_legacy": sentence_piece(lines, True),
        "sentencepiece": sentence_piece(lines, False),
        "metaspace": metaspace(lines),
    }
    out = {"small": [], "shared": []}
    for name, t in small.items():
        out["small"].append({"name": name, "tokenizer": json.loads(t.to_str()), "cases": cases(t, rng)})
    root = sys.argv[2]
    shared = {"phi-3-mini": Tokenizer.from_file(f"{root}/phi-3-mini/tokenizer.json"),
              "gpt2": merges_directory(f"{root}/gpt2", False), "qwen2.5": merges_directory(f"{root}/qwen2.5", True)}
    for name, t in shared.items():
        out["shared"].append({"name": name, "cases": cases(t, rng)})
    json.dump(out, sys.stdout, separators=(",", ":"), ensure_ascii=True)
    print()


main()
