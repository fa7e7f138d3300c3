# A small cross-encoder for the journeys: BERT with random weights and one label, its vocabulary, pairs of texts, and
# what Transformers makes of them (tests/rerank_transformers.py --write makes the file anew).
import json
import string
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "src/model/hf/testdata/cross_encoder.json"
WIDTH, INNER, LAYERS, POSITIONS = 32, 64, 2, 48
WORDS = ("the a of king ocean sea rules ruler who cake apple apples oceans have taxes are due in may ship sails oar "
         "rowers drove ancient warship").split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *string.ascii_lowercase, *string.digits, *".,?!-",
              *("##" + c for c in string.ascii_lowercase + string.digits)]
QUERY = "Who rules the sea?"
DOCUMENTS = ["A cake of apples", "The king of the ocean", "Oceans have rulers", "Taxes are due in May", "oar",
             "Ünïcode 東 7"]
LONG = "the ancient warship sails " * 9
PAIRS = [*([QUERY, d] for d in DOCUMENTS), [DOCUMENTS[1], QUERY], [LONG, "rowers"], ["rowers", LONG],
         [LONG, "king of apples " * 12]]


def weights(labels):
    """Names of Transformers' BERT to arrays; the stream of RandomState is frozen."""
    random = np.random.RandomState(11)

    def draw(*shape, deviation=0.25, mean=0.0):
        return (mean + deviation * random.standard_normal(shape)).astype("<f4")
    out = {}

    def linear(name, rows, columns):
        out[name + ".weight"], out[name + ".bias"] = draw(rows, columns), draw(rows, deviation=0.1)

    def norm(name):
        out[name + ".weight"], out[name + ".bias"] = draw(WIDTH, deviation=0.1, mean=1.0), draw(WIDTH, deviation=0.1)
    for name, rows in (("word", len(VOCABULARY)), ("position", POSITIONS), ("token_type", 2)):
        out[f"bert.embeddings.{name}_embeddings.weight"] = draw(rows, WIDTH)
    norm("bert.embeddings.LayerNorm")
    for i in range(LAYERS):
        at = f"bert.encoder.layer.{i}."
        for name in ("query", "key", "value"):
            linear(at + "attention.self." + name, WIDTH, WIDTH)
        linear(at + "attention.output.dense", WIDTH, WIDTH)
        norm(at + "attention.output.LayerNorm")
        linear(at + "intermediate.dense", INNER, WIDTH)
        linear(at + "output.dense", WIDTH, INNER)
        norm(at + "output.LayerNorm")
    linear("bert.pooler.dense", WIDTH, WIDTH)
    linear("classifier", labels, WIDTH)
    return out


def make_cross_encoder(path, labels=1, has_tokenizer=True, **config):
    """A directory as Transformers and sentence-transformers have it."""
    path.mkdir(parents=True)
    names = {str(i): f"LABEL_{i}" for i in range(labels)}
    (path / "config.json").write_text(json.dumps({
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": len(VOCABULARY),
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "pad_token_id": 0, "id2label": names, "label2id": {v: int(k) for k, v in names.items()}, **config}))
    header, data = {}, b""
    for name, value in weights(labels).items():
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    if has_tokenizer:
        (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        (path / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}))


def golden_logits():
    """Of PAIRS, in their order."""
    return json.loads(GOLDEN.read_text())["logits"]
