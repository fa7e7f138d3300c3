# Cross-encoders against Transformers: scores of pairs from a directory and from PyTorch's ONNX file of it.
# tier: oracles
# timeout: 280
# With --write it makes the reference that tests/serve_rerank.py reads.
import json
import sys

import torch
import transformers

from _cross_encoder import GOLDEN, PAIRS, POSITIONS, golden_logits, make_cross_encoder
from _serving import Server, link_tree, run_cases, temporary
from serve_text import call


class Model:
    """The directory and what Transformers makes of it, once."""
    root = None

    @classmethod
    def get(cls):
        if cls.root is None:
            cls.root = temporary()
            make_cross_encoder(cls.root / "pairs")
            cls.network = transformers.AutoModelForSequenceClassification.from_pretrained(cls.root / "pairs").eval()
            cls.tokenizer = transformers.AutoTokenizer.from_pretrained(cls.root / "pairs")
        return cls.root

    @classmethod
    def tokens(cls, pair):
        cls.get()
        return cls.tokenizer(*pair, truncation=True, max_length=POSITIONS, return_tensors="pt")

    @classmethod
    def logits(cls):
        with torch.no_grad():
            return [cls.network(**cls.tokens(pair)).logits.item() for pair in PAIRS]


def same(got, want, most=1e-5):
    assert max(abs(g - w) for g, w in zip(got, want, strict=True)) < most, (got, want)


def scores(server, model, **members):
    body = {"model": model, "text_1": [p[0] for p in PAIRS], "text_2": [p[1] for p in PAIRS], **members}
    status, _, answer = call(server, "/v1/score", body)
    assert status == 200, answer
    return [d["score"] for d in answer["data"]]


def case_the_reference_is_transformers():
    Model.get()
    same(golden_logits(), Model.logits())


def case_served_scores_are_transformers():
    root = Model.get()
    (root / "onnx").mkdir()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    tokens = Model.tokens(PAIRS[0])
    open_dims = {name: {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("seq", max=POSITIONS)}
                 for name in names}
    two = {name: tokens[name].repeat(2, 1) for name in names}
    torch.onnx.export(Model.network, (), str(root / "onnx/model.onnx"), kwargs=two, input_names=names,
                      output_names=["logits"], dynamic_shapes=open_dims, external_data=False, dynamo=True)
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (root / "onnx" / name).write_bytes((root / "pairs" / name).read_bytes())
    repository = temporary()
    link_tree(root, repository)
    want = Model.logits()
    with Server(repository, "--threads", "1", "--warm-up", "none") as server:
        for model in ("pairs", "onnx"):
            same(scores(server, model, use_activation=False), want)
            same(scores(server, model), torch.tensor(want).sigmoid().tolist())


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        Model.get()
        GOLDEN.write_text(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                                      "logits": Model.logits()}, indent=1) + "\n")
    else:
        run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
