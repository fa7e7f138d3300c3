"""Tokenizes the files of src/data/text/wordpiece_bench.cc with the tokenizers package, one thread, and prints MB/s and tokens."""
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import BertWordPieceTokenizer  # noqa: E402  (reads the variable when it is imported)

shared = sys.argv[1] if len(sys.argv) > 1 else os.environ["TRIREME_SHARED_DATA"]
tokenizer = BertWordPieceTokenizer(f"{shared}/tokenizers/bert-base-uncased/vocab.txt", lowercase=True)
for name, path in [("english", "text/wikitext-2/test.txt"), ("many_scripts", "tokenizers/bert-base-uncased/vocab.txt")]:
    raw = open(f"{shared}/{path}", "rb").read()
    lines = raw.decode("utf-8", "replace").removesuffix("\n").split("\n")
    speeds = []
    for _ in range(5):
        start = time.perf_counter()
        tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(lines))
        speeds.append(len(raw) / (time.perf_counter() - start) / 1e6)
    print(f"{name}: {statistics.median(speeds):.1f} MB/s, {tokens} tokens")
