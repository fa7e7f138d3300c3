#!/usr/bin/env python3
"""Times trireme's tokenizers against Hugging Face's `tokenizers`, one thread each, in turns, on the same texts.

Needs the shared data ($TRIREME_SHARED_DATA). Prints a table: MB of text a second, medians of alternating rounds, and
the spread of the ratio. Counts of tokens must agree.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers  # noqa: E402  (reads the variables)

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TRIREME_SHARED_DATA", ROOT / "shared/data"))
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))


def by_merges(folder, pattern=None):
    vocab = json.loads((folder / "vocab.json").read_text())
    lines = (folder / "merges.txt").read_text().splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is None:
        made.pre_tokenizer = byte_level
    else:
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    return made


def peers():
    root = SHARED / "tokenizers"
    patterns = json.loads((ROOT / "tests/word_patterns.json").read_text())
    yield "GPT-2 (byte pairs)", root / "gpt2", by_merges(root / "gpt2")
    yield "Qwen 2.5 (byte pairs)", root / "qwen2.5", by_merges(root / "qwen2.5", patterns["qwen2"])
    yield "Phi-3 (SentencePiece)", root / "phi-3-mini", Tokenizer.from_file(str(root / "phi-3-mini/tokenizer.json"))


def ours(path, lines, rounds):
    words = [TRIREME, "tokenize", str(path), "--lines", str(lines), "--no-special", "--bench", str(rounds)]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--text", default=str(SHARED / "text/wikitext-2/test.txt"), help="file of the text")
    args = parser.parse_args()
    text = Path(args.text).read_text()
    print("| tokenizer | texts | tokenizers, MB/s | trireme, MB/s | ratio (least to most) |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind, texts in [("lines", [line + "\n" for line in text.split("\n")]), ("one text", [text])]:
            lines = Path(folder) / "lines.jsonl"
            lines.write_text("\n".join(map(json.dumps, texts)) + "\n")
            size = sum(len(t.encode()) for t in texts)
            for name, path, peer in peers():
                theirs, mine = [], []
                for _ in range(args.rounds):
                    start = time.perf_counter()
                    count = sum(len(peer.encode(t, add_special_tokens=False).ids) for t in texts)
                    theirs.append(size / (time.perf_counter() - start) / 1e6)
                    result = ours(path, lines, 3)
                    if result["tokens"] != count:
                        raise SystemExit(f"{name}: {result['tokens']} tokens, the package has {count}")
                    mine.append(statistics.median(result["mb_per_s"]))
                ratios = [a / b for a, b in zip(mine, theirs)]
                print(
                    f"| {name} | {kind} | {statistics.median(theirs):.1f} | {statistics.median(mine):.1f} | "
                    f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) |",
                    flush=True,
                )


main()
