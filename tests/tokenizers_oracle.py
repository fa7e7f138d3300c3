# trireme tokenize against Hugging Face's tokenizers and SentencePiece: the same ids and texts, on random texts in
# many scripts, for tokenizers of every kind put together at random and for the vocabularies of the shared data.
# tier: all
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))
SEED = int(os.environ.get("TRIREME_SEED", "19"))
COUNT = int(os.environ.get("TRIREME_TEXTS", "400"))
passed, failures, skips = 0, [], []

SCRIPTS = {
    "latin": [range(0x41, 0x5B), range(0x61, 0x7B), range(0xC0, 0x180)],
    "greek": [range(0x391, 0x3CA)],
    "cyrillic": [range(0x410, 0x450)],
    "arabic": [range(0x620, 0x64B), range(0x64B, 0x653)],
    "hebrew": [range(0x5D0, 0x5EB)],
    "devanagari": [range(0x905, 0x94E)],
    "thai": [range(0xE01, 0xE3B)],
    "han": [range(0x4E00, 0x4F00)],
    "kana": [range(0x3041, 0x3097), range(0x30A1, 0x30FB)],
    "hangul": [range(0xAC00, 0xAD00), range(0x1100, 0x1113)],
    "emoji": [range(0x1F600, 0x1F640)],
    "signs": [range(0x21, 0x30), range(0x3A, 0x41), range(0x2010, 0x2028), range(0xFF01, 0xFF20)],
    "digits": [range(0x30, 0x3A), range(0x660, 0x66A), range(0xB2, 0xB4), range(0x2160, 0x2168)],
    "marks": [range(0x300, 0x310)],
    "forms": [range(0xFB00, 0xFB05), range(0xFF21, 0xFF3B), range(0x3300, 0x3310)],
}
SPACES = [" "] * 12 + ["  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "   ", " \n"]
WORDS = [
    "the",
    "The",
    "don't",
    "I'LL",
    "we've",
    "2024",
    "x_1",
    "hello",
    "world",
    "CamelCase",
    "it's",
    "'s",
    "a.b",
    "https://x.y/z?q=1",
    "<s>",
    "</s>",
    "<mask>",
    "[MASK]",
    "<|end|>",
    "\u2581",
    "straße",
    "ﬁ",
    "İ",
    "ΣΑΣ",
    "1234567",
    "ſ",
    "'ſ",
    "été",
    "e\u0301",
]


def random_text(rng):
    out = []
    for _ in range(rng.randrange(1, 20)):
        if rng.random() < 0.3:
            out.append(rng.choice(WORDS))
        else:
            ranges = SCRIPTS[rng.choice(list(SCRIPTS))]
            out.append("".join(chr(rng.choice(rng.choice(ranges))) for _ in range(rng.randrange(1, 9))))
        if rng.random() < 0.8:
            out.append(rng.choice(SPACES))
    return "".join(out)


def run(tokenizer, lines, *words):
    done = subprocess.run(
        [TRIREME, "tokenize", str(tokenizer), "--lines", "-", *words],
        capture_output=True,
        input="\n".join(json.dumps(x) for x in lines).encode() + b"\n",
    )
    if done.returncode != 0:
        return done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(what, path, texts, want, special=True):
    """The ids of each text."""
    global passed
    got = run(path, texts, *([] if special else ["--no-special"]))
    if isinstance(got, str):
        failures.append(f"{what}: {got[-300:]}")
        return
    for text, a, b in zip(texts, got, want, strict=True):
        if a != b:
            failures.append(f"{what}: {text!r}: {a} but {b}")
            return
    passed += 1


def compare_decoded(what, path, ids, want, streams=True):
    global passed
    got = run(path, ids, "--decode")
    if isinstance(got, str):
        failures.append(f"{what} decoded: {got[-300:]}")
        return
    for i, a, b in zip(ids, got, want, strict=True):
        if a["text"] != b or (streams and "\ufffd" not in b and a["streamed"] != b):
            failures.append(f"{what}: decoded {i}: {a} but {b!r}")
            return
    passed += 1


PATTERNS = json.loads((ROOT / "tests/word_patterns.json").read_text())
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def charsmap():
    """The normalizer of the shared SentencePiece model, or None."""
    path = SHARED / "tokenizers/sentencepiece_unigram/test_model.model"
    if not path.exists():
        return None
    # ModelProto.normalizer_spec (3).precompiled_charsmap (2)
    data, at = path.read_bytes(), 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        size = varint()
        if tag >> 3 == 3:
            end = at + size
            while at < end:
                inner = varint()
                if inner & 7 == 0:
                    varint()
                    continue
                length = varint()
                if inner >> 3 == 2:
                    return data[at : at + length]
                at += length
        at += size
    return None


def random_normalizer(rng):
    n = normalizers
    table = charsmap()
    choices = [
        n.NFC(),
        n.NFD(),
        n.NFKC(),
        n.NFKD(),
        n.Lowercase(),
        n.StripAccents(),
        n.Strip(),
        n.Strip(True, False),
        n.Replace(" ", "\u2581"),
        n.Replace(Regex(r"\s{2,}"), " "),
        n.Replace(Regex(r"[''`]"), "'"),
        n.Prepend("\u2581"),
        n.Nmt(),
        n.BertNormalizer(),
        n.BertNormalizer(lowercase=False, strip_accents=True),
        n.BertNormalizer(clean_text=False),
    ]
    if table:
        choices.append(n.Precompiled(table))
    return n.Sequence([rng.choice(choices) for _ in range(rng.randrange(1, 4))])


def random_pre_tokenizer(rng, byte_level):
    p = pre_tokenizers
    steps = []
    for _ in range(rng.randrange(0 if byte_level else 1, 3)):
        kind = rng.randrange(9)
        if kind < 3:
            pattern = (
                Regex(rng.choice(list(PATTERNS.values()))) if rng.random() < 0.8 else rng.choice([" ", "e", "\u2581"])
            )
            steps.append(p.Split(pattern, rng.choice(BEHAVIORS), invert=rng.random() < 0.3))
        elif kind == 3:
            steps.append(p.Digits(individual_digits=rng.random() < 0.5))
        elif kind == 4:
            steps.append(p.Punctuation(rng.choice(BEHAVIORS)))
        elif kind == 5:
            steps.append(p.WhitespaceSplit())
        elif kind == 6:
            steps.append(p.Whitespace())
        elif kind == 7:
            steps.append(p.BertPreTokenizer())
        elif not byte_level:
            steps.append(p.Metaspace(prepend_scheme=rng.choice(["always", "first", "never"]), split=rng.random() < 0.7))
    if byte_level:
        steps.append(p.ByteLevel(add_prefix_space=rng.random() < 0.3, use_regex=rng.random() < 0.4))
        if rng.random() < 0.3:
            steps.append(
                rng.choice(
                    [
                        p.Digits(),
                        p.Digits(individual_digits=True),
                        p.Punctuation(),
                        p.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
                    ]
                )
            )
    return p.Sequence(steps)


def random_tokenizer(rng, lines):
    kind = rng.choice(["bpe", "bpe", "bytes", "bytes", "unigram", "word_piece"])
    special = ["<unk>", "<s>", "</s>"]
    options = {"vocab_size": 2500, "special_tokens": special, "show_progress": False}
    if kind == "bytes":
        t = Tokenizer(models.BPE(ignore_merges=rng.random() < 0.3))
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
        t.decoder = decoders.ByteLevel()
    elif kind == "bpe":
        suffix = "</w>" if rng.random() < 0.3 else None
        more = {"end_of_word_suffix": suffix} if suffix else {}
        t = Tokenizer(
            models.BPE(
                unk_token="<unk>",
                fuse_unk=rng.random() < 0.5,
                byte_fallback=suffix is None and rng.random() < 0.5,
                **more,
            )
        )
        options["special_tokens"] = special + [f"<0x{b:02X}>" for b in range(256)]
        trainer = trainers.BpeTrainer(limit_alphabet=120, **more, **options)
        if suffix:
            t.decoder = decoders.BPEDecoder(suffix=suffix)
        else:
            t.decoder = decoders.Sequence(
                [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            )
    elif kind == "unigram":
        t = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
        t.decoder = decoders.Metaspace()
    else:
        t = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=rng.choice([8, 100])))
        trainer = trainers.WordPieceTrainer(**options)
        t.decoder = decoders.WordPiece(cleanup=rng.random() < 0.5)
    t.pre_tokenizer = (
        pre_tokenizers.Metaspace() if kind in ("bpe", "unigram") else random_pre_tokenizer(rng, kind == "bytes")
    )
    t.train_from_iterator(lines, trainer)
    if rng.random() < 0.6:
        t.normalizer = random_normalizer(rng)
    if kind in ("bpe", "unigram"):
        t.pre_tokenizer = random_pre_tokenizer(rng, False)
    plain = json.loads(t.to_str())
    plain["added_tokens"] = plain["added_tokens"][:3]
    if kind == "unigram":
        plain["model"]["byte_fallback"] = False
    t = Tokenizer.from_str(json.dumps(plain))
    for content in ["<mask>", "<|end|>", "[MASK]"]:
        if rng.random() < 0.6:
            t.add_tokens(
                [
                    AddedToken(
                        content,
                        lstrip=rng.random() < 0.4,
                        rstrip=rng.random() < 0.4,
                        single_word=rng.random() < 0.3,
                        normalized=rng.random() < 0.4,
                        special=rng.random() < 0.4,
                    )
                ]
            )
    if rng.random() < 0.5:
        t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    elif rng.random() < 0.3:
        t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return kind, t


def decoded(t, many):
    """What the package decodes, without the lists on which it panics."""
    ids, texts = [], []
    # What the package shows of them is their normalized text, which depends on its version.
    normalized = {i for i, token in t.get_added_tokens_decoder().items() if token.normalized}
    for one in many:
        one = [i for i in one if i not in normalized]
        try:
            texts.append(t.decode(one))
            ids.append(one)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
    return ids, texts


def test_random(scratch, count):
    rng = random.Random(SEED)
    lines = [random_text(rng) for _ in range(300)]
    for i in range(count):
        kind, t = random_tokenizer(rng, lines)
        path = scratch / "tokenizer.json"
        t.save(str(path))
        before = len(failures)
        texts = [random_text(rng) for _ in range(60)]
        want = [t.encode(x).ids for x in texts]
        compare(f"random {i} {kind}", path, texts, want)
        size = t.get_vocab_size()
        ids = [[rng.randrange(size) for _ in range(rng.randrange(1, 12))] for _ in range(40)] + want[:20]
        compare_decoded(f"random {i} {kind}", path, *decoded(t, ids))
        if len(failures) > before:
            parts = json.loads(t.to_str())
            del parts["model"]["vocab"]
            parts["model"].pop("merges", None)
            failures.append(json.dumps({k: v for k, v in parts.items() if k != "added_tokens"})[:1500])


def test_patterns(scratch):
    """Every published pattern over the same bytes, on every script."""
    rng = random.Random(SEED + 1)
    texts = [random_text(rng) for _ in range(COUNT)]
    texts += [
        f"{a}{b}{c}"
        for a in ["", " ", "\n", "x"]
        for b in ["  ", " \n ", "\u180e", "\u200b", "\x85", "\x1c", "\u00ad", "'\u017f"]
        for c in ["", "y", " ", "!", "1"]
    ]
    for name, pattern in PATTERNS.items():
        vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        t = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        # Words show as a mark between them: a token for each.
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        merges = train_merges(t, texts, scratch)
        t.model = merges
        t.decoder = decoders.ByteLevel()
        path = scratch / "tokenizer.json"
        t.save(str(path))
        compare(f"pattern {name}", path, texts, [t.encode(x).ids for x in texts])


def train_merges(t, texts, scratch):
    """Merges that join any two bytes of this text where a word allows it, so that each end of a word shows."""
    trainer = trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, min_frequency=1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    free = Tokenizer(models.BPE())
    free.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    free.train_from_iterator(texts, trainer)
    return free.model


def test_shared():
    root = SHARED / "tokenizers"
    if not root.exists():
        return skips.append(f"no {root}")
    rng = random.Random(SEED + 2)
    texts = [random_text(rng) for _ in range(COUNT)]
    phi = Tokenizer.from_file(str(root / "phi-3-mini/tokenizer.json"))
    compare("phi-3-mini", root / "phi-3-mini", texts, [phi.encode(x).ids for x in texts])
    try:
        import sentencepiece
    except ImportError:
        return skips.append("no sentencepiece")
    plain = [x for x in texts if "<s>" not in x and "</s>" not in x and "<mask>" not in x]
    for name, file in [
        ("open_llama", "open_llama/tokenizer.model"),
        ("unigram", "sentencepiece_unigram/test_model.model"),
    ]:
        sp = sentencepiece.SentencePieceProcessor(model_file=str(root / file))
        compare(name, root / file, plain, [sp.encode(x) for x in plain], special=False)
        ids = [[rng.randrange(3, sp.vocab_size()) for _ in range(rng.randrange(1, 12))] for _ in range(100)]
        compare_decoded(name, root / file, ids, [sp.decode(x) for x in ids])


def test_tiktoken():
    root = SHARED / "tokenizers"
    if not root.exists():
        return
    try:
        import tiktoken
        import tiktoken.load
    except ImportError:
        return skips.append("no tiktoken")
    rng = random.Random(SEED + 3)
    texts = [random_text(rng) for _ in range(COUNT)]
    for path, pattern in [(root / "cl100k_base.tiktoken", "cl100k"), (root / "whisper/multilingual.tiktoken", "gpt2")]:
        ranks = dict(line.split() for line in path.read_bytes().splitlines() if line)
        ranks = {base64.b64decode(token): int(rank) for token, rank in ranks.items()}
        peer = tiktoken.Encoding(path.stem, pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
        compare(path.stem, path, texts, [peer.encode_ordinary(x) for x in texts])


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_random(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 40)
        test_patterns(Path(folder))
    test_shared()
    test_tiktoken()
    for failure in failures[:20]:
        print("FAILED", failure)
    for reason in skips:
        print("skip:", reason)
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    sys.exit(1 if failures else 0)


main()
