# Cross-encoders over /v1/rerank and /v1/score: the scores of Transformers, alone as in company, refusals by name.
import math
import subprocess

import numpy as np

from _cross_encoder import DOCUMENTS, PAIRS, QUERY, golden_logits, make_cross_encoder
from _serving import TRIREME, Server, run_cases, temporary
from serve_text import call

CONFIGURED = """
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
        { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 1 ] } ]
max_batch_size: 8
"""


def export(path, options):
    """Our random BERT of pairs as a file of ONNX or a directory, the same weights in both."""
    subprocess.run([TRIREME, "export", "zoo:bert:layers=2,width=32,heads=4,positions=48,head=classification,classes=1,"
                    f"vocabulary={options}", str(path)], check=True, capture_output=True)


class Host:
    """One server with cross-encoders of several kinds for all cases."""
    server = None

    @classmethod
    def get(cls):
        if cls.server is None:
            root = temporary()
            make_cross_encoder(root / "pairs")
            identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
            make_cross_encoder(root / "raw", sentence_transformers=identity)
            make_cross_encoder(root / "three", labels=3)
            make_cross_encoder(root / "tensors", has_tokenizer=False)
            make_cross_encoder(root / "configured")
            (root / "configured/config.pbtxt").write_text(CONFIGURED)
            vocabulary = (root / "pairs/vocab.txt").read_text()
            tokens = len(vocabulary.splitlines())
            export(root / "directory", tokens)
            (root / "file").mkdir()
            export(root / "file/model.onnx", f"{tokens},has_token_types=true")
            (root / "file/config.json").write_text((root / "directory/config.json").read_text())
            for name in ("directory", "file"):
                (root / name / "vocab.txt").write_text(vocabulary)
            cls.server = Server(root, "--threads", "1", "--warm-up", "none", "--length-buckets", "8,16,32")
        return cls.server


def ask(path, **members):
    status, _, body = call(Host.get(), path, {"model": "pairs", **members})
    assert status == 200, body
    return body


def scores(first, second, **members):
    return [d["score"] for d in ask("/v1/score", text_1=first, text_2=second, **members)["data"]]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def same(got, want, most=5e-6):
    assert len(got) == len(want) and max(abs(g - w) for g, w in zip(got, want)) < most, (got, want)


def case_scores_are_those_of_transformers():
    first, second = [p[0] for p in PAIRS], [p[1] for p in PAIRS]
    logits = golden_logits()
    same(scores(first, second), [sigmoid(x) for x in logits])
    same(scores(first, second, use_activation=False), logits)
    same(scores(first, second, activation=False), logits)
    same(scores(first, second, model="raw"), logits)
    same(scores(QUERY, DOCUMENTS), [sigmoid(x) for x in logits[:len(DOCUMENTS)]])


def case_rerank():
    want = [sigmoid(x) for x in golden_logits()[:len(DOCUMENTS)]]
    order = sorted(range(len(DOCUMENTS)), key=lambda i: -want[i])
    body = ask("/v1/rerank", query=QUERY, documents=DOCUMENTS)
    assert [r["index"] for r in body["results"]] == order, (body, want)
    same([r["relevance_score"] for r in body["results"]], [want[i] for i in order])
    assert [r["document"]["text"] for r in body["results"]] == [DOCUMENTS[i] for i in order], body
    # [CLS] query [SEP] document [SEP]: the query has five tokens.
    assert body["usage"]["total_tokens"] > 8 * len(DOCUMENTS), body
    # An empty document is [CLS] query [SEP] [SEP], wherever it stands.
    empty = ask("/v1/rerank", query=QUERY, documents=["", DOCUMENTS[0], {"text": ""}])["results"]
    found = {r["index"]: r["relevance_score"] for r in empty}
    assert found[0] == found[2] and abs(found[1] - want[0]) < 1e-5, (found, want)
    same(infer("pairs", text=[QUERY], text_pair=[""])["score"], [found[0]], 1e-6)
    best = ask("/rerank", query=QUERY, documents=DOCUMENTS, top_n=1)["results"]
    assert [r["index"] for r in best] == order[:1], best


def executions():
    """Rows that ran, and runs."""
    metrics = Host.get().metrics()
    return [sum(v for k, v in metrics.items() if k.startswith(name + "{") and 'model="pairs"' in k)
            for name in ("nv_inference_count", "nv_inference_exec_count")]


def case_many_pairs_share_batches_and_are_as_alone():
    documents = [f"{d} {'sails ' * (i % 7)}" for i in range(16) for d in DOCUMENTS]
    alone = [scores(QUERY, d)[0] for d in documents]
    before = executions()
    assert scores(QUERY, documents) == alone
    rows, runs = (b - a for a, b in zip(before, executions()))
    assert rows == len(documents) and 0 < runs < rows / 4, (rows, runs)


def infer(model, outputs=None, **inputs):
    """Outputs of KServe's call by name, or the error; texts as lists, tokens as arrays."""
    body = {"inputs": [
        {"name": n, "datatype": "BYTES" if isinstance(v, list) else "INT64",
         "shape": [len(v)] if isinstance(v, list) else list(v.shape),
         "data": v if isinstance(v, list) else v.ravel().tolist()} for n, v in inputs.items()]}
    status, _, reply = call(Host.get(), f"/v2/models/{model}/infer", body)
    return {o["name"]: o["data"] for o in reply["outputs"]} if status == 200 else (status, reply["error"])


def case_texts_and_tokens_over_kserve():
    metadata = call(Host.get(), "/v2/models/pairs")[2]
    assert [(t["name"], t["datatype"]) for t in metadata["inputs"]] == [("text", "BYTES"), ("text_pair", "BYTES")]
    got = infer("pairs", text_pair=DOCUMENTS, text=[QUERY] * len(DOCUMENTS))
    same(got["logits"], golden_logits()[:len(DOCUMENTS)])
    same(got["score"], scores(QUERY, DOCUMENTS), 1e-7)
    ids = np.array([[2, 9, 10, 3, 7, 3]])
    ones, types = np.ones_like(ids), np.array([[0, 0, 0, 0, 1, 1]])
    pair = infer("pairs", input_ids=ids, attention_mask=ones, token_type_ids=types)
    plain = infer("pairs", input_ids=ids, attention_mask=ones, token_type_ids=0 * types)
    assert abs(pair["score"][0] - plain["score"][0]) > 1e-3, (pair, plain)
    assert infer("pairs", input_ids=ids, attention_mask=ones) == plain
    for inputs, word in (({"text": ["a"]}, "text_pair"), ({"text": ["a"], "text_pair": ["a", "b"]}, "batch-size"),
                         ({"input_ids": ids, "attention_mask": ones, "token_type_ids": 2 * ones}, "token type 2"),
                         ({"input_ids": ids, "attention_mask": ones, "token_type_ids": types[:, :3]},
                          "token_type_ids")):
        status, error = infer("pairs", **inputs)
        assert status == 400 and word in error, (inputs, error)


def case_configured_as_tensors():
    ids = np.array([[2, 9, 10, 3]])
    got = infer("configured", input_ids=ids, attention_mask=np.ones_like(ids))
    whole = infer("pairs", input_ids=ids, attention_mask=np.ones_like(ids))
    assert got == {"logits": whole["logits"]}, (got, whole)
    assert infer("tensors", input_ids=ids, attention_mask=np.ones_like(ids)) == got
    same(scores(QUERY, DOCUMENTS, model="configured", use_activation=False), golden_logits()[:len(DOCUMENTS)])
    status, _, body = call(Host.get(), "/v1/score", {"model": "configured", "text_1": "a", "text_2": "b"})
    assert status == 404 and "without its output score" in body["error"]["message"], body


def case_onnx_files_score_as_directories():
    documents = DOCUMENTS + [QUERY, "the ancient warship " * 30]
    directory = scores(QUERY, documents, model="directory", use_activation=False)
    assert max(directory) - min(directory) > 1e-4, directory
    same(scores(QUERY, documents, model="file", use_activation=False), directory, 1e-6)
    same(scores(QUERY, documents, model="file"), [sigmoid(x) for x in directory])


def case_refusals():
    def refused(path, **members):
        status, _, body = call(Host.get(), path, {"model": "pairs", **members})
        return status, body["error"]
    pair = {"text_1": "a", "text_2": "b"}
    for member, value in (("truncate_prompt_tokens", 4), ("max_tokens_per_doc", 9), ("rank_fields", ["title"])):
        status, error = refused("/v1/rerank", query="a", documents=["b"], **{member: value})
        assert status == 400 and error["param"] == member, error
    status, error = refused("/v1/score", use_activation="no", **pair)
    assert status == 400 and error["param"] == "use_activation", error
    status, error = refused("/v1/embeddings", input="a")
    assert status == 404 and "/v1/rerank" in error["message"], error
    for model in ("three", "tensors"):
        status, error = refused("/v1/rerank", model=model, query="a", documents=["b"])
        assert status == 404 and error["code"] == "model_not_found" and "one label" in error["message"], error


def case_zz_stop():
    assert Host.get().stop() == 0


if __name__ == "__main__":
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
