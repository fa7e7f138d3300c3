#!/usr/bin/env python3
"""Writes src/data/testdata/wordpiece_vectors.json: texts and the ids that Hugging Face's tokenizers gives for them.

Usage: wordpiece_vectors.py VOCAB_TXT > src/data/testdata/wordpiece_vectors.json   (tokenizers 0.23.3)
VOCAB_TXT is the vocabulary of bert-base-uncased; the ids depend on it, so the file records its SHA-256.
"""
import hashlib
import json
import random
import sys

from tokenizers import BertWordPieceTokenizer

VARIANTS = {
    "uncased": dict(lowercase=True),
    "cased": dict(lowercase=False),
    "keep_accents": dict(lowercase=True, strip_accents=False),
    "cased_strip": dict(lowercase=False, strip_accents=True),
    "no_chinese": dict(lowercase=True, handle_chinese_chars=False),
    "no_clean": dict(lowercase=True, clean_text=False),
}

HARD = [
    "", " ", "\t\n\r", "Hello, World!", "unaffable unwanted running", "don't stop-believing... ok?!",
    "re\u0301sume\u0301 r\u00e9sum\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00dcber", "\u0130stanbul I\u0307 \u0131 \u1e9e \u00df \ufb01ne \u2126 \u212b",
    "a\u0327\u0301b a\u0301\u0327b \u0344 \u1e69 s\u0323\u0307 s\u0307\u0323",
    "\u1100\u1161\u11a8 \uac01 \ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u4f60\u597d\u4e16\u754c abc\u4e2d\u6587def \u3042\u308a\u304c\u3068\u3046 \u30ab\u30bf\u30ab\u30ca \uff21\uff22\uff23",
    "\uf900\ufa0e\U0002f800 \U00020000x\U0002b820y\U0002b920z",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645\u064f \u200f\u202eabc\u202c",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947 \u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u1780\u17b6\u1793\u17cb",
    "a\u0000b\u0001c\u007fd\u0085e\u00ade\u200bf\ufefffg\ufffdh", "x\u000bx x\u000cx x\u001cx x\u00a0x x\u2003x x\u2028x x\u3000x x\u180ex",
    "\u0391\u03a3 \u03a3\u03a3 \u039f\u0394\u039f\u03a3 \u1f88 \u0345", "$5 + 3 = \u20ac8 ^_` ~|{} <a> \u00a7\u00b6\u00b7\u00bf \u2014\u2026\u201c\u201d \u00d7\u00f7",
    "a" * 100, "a" * 101, "\u00e9" * 100 + " " + "\u00e9" * 101, "antidisestablishmentarianism" * 5, "zzzqqqxxx##yyy ##ing # # ing",
    "[CLS] [MASK] x[SEP]y [PAD][UNK] [cls] [ MASK] [MASK", "the [MASK]ing [SEP", "http://a.b/c?d=e&f=%20 user@example.com 3.14159 1,000,000",
    "\u0915\u094d\u0937 \u0d15\u0d4d\u200d \U00011938 \u1734 \u0898 \u111c9", "\u16ee\u2160\u2170\u24b6\u24d0 \u10a0\u2d00 \u13a0\uab70 \u1c90",
    "\U00010400\U00010428 \U0001e900 \U0001d400 \U0001d165\U0001d16e\u0327",
]
BROKEN = ["ff", "61c328", "e28261", "f09f98", "edA08061".lower(), "c08041", "f4908080", "80e2", "61f09f9880ff62"]


def random_texts(rng, count):
    pools = [range(0x20, 0x7F), range(0x20, 0x7F), range(0xA0, 0x250), range(0x300, 0x370),
             range(0x370, 0x530), range(0x590, 0x700), range(0x900, 0xE00), range(0x1100, 0x1200),
             range(0x1E00, 0x2070), range(0x2000, 0x2C00), range(0x3000, 0x3100), range(0x4E00, 0x4F00),
             range(0xAC00, 0xAD00), range(0xF900, 0xFB50), range(0xFE00, 0x10000), range(0x1F300, 0x1F700),
             range(0x1D100, 0x1D200), range(0, 0x110000)]
    for _ in range(count):
        text = ""
        for _ in range(rng.randrange(1, 30)):
            code = rng.choice(rng.choice(pools))
            text += "e" if 0xD800 <= code <= 0xDFFF else chr(code)
        yield text


def main():
    vocab_path = sys.argv[1]
    rng = random.Random(20)
    random_cases = list(random_texts(rng, 150))
    digest = hashlib.sha256(open(vocab_path, "rb").read()).hexdigest()
    out = {"vocab_sha256": digest, "variants": {}, "single": [], "pair": []}
    for name, options in VARIANTS.items():
        # The defaults of BertNormalizer: accents are stripped when the case is lowered.
        full = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": options.get("lowercase"), **options}
        out["variants"][name] = full
        tokenizer = BertWordPieceTokenizer(vocab_path, **full)
        texts = [bytes(t, "utf-8") for t in HARD + random_cases] + [bytes.fromhex(h) for h in BROKEN]
        # The plain variant gets every text, the others a part, to keep the file small.
        for i, raw in enumerate(texts if name == "uncased" else texts[: len(HARD)] + texts[len(HARD) :: 5]):
            ids = tokenizer.encode(raw.decode("utf-8", "replace")).ids
            out["single"].append({"variant": name, "hex": raw.hex(), "ids": ids})
    tokenizer = BertWordPieceTokenizer(vocab_path, lowercase=True)
    words = "the quick brown fox jumps over unaffable lazy dogs and embeddings".split()
    for _ in range(60):
        limit = rng.randrange(3, 24)
        first = " ".join(rng.choices(words, k=rng.randrange(0, 20)))
        second = " ".join(rng.choices(words, k=rng.randrange(0, 20)))
        tokenizer.enable_truncation(limit, strategy="longest_first")
        encoding = tokenizer.encode(first, second)
        single = tokenizer.encode(first)
        out["pair"].append({"first": first, "second": second, "max_length": limit, "ids": encoding.ids,
                            "type_ids": encoding.type_ids, "attention_mask": encoding.attention_mask, "single": single.ids})
    print("{" + f'"vocab_sha256": "{out["vocab_sha256"]}",\n"variants": {json.dumps(out["variants"])},')
    for key in ("single", "pair"):
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in out[key])
        print(f'"{key}": [\n{rows}\n]' + ("," if key == "single" else "}"))


main()
