# Writes the MiniLM reference that src/model/hf/bert_test.cc reads: token ids, hidden states and embeddings.
#
# Run once with the versions of tools/requirements-oracles.txt; the results are committed:
#   python tools/oracles/minilm_embeddings.py ENCODER_DIRECTORY src/model/hf/testdata
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

SENTENCES = [
    "A galley with three banks of oars is called a trireme.",
    "Three rows of rowers drove the ancient warship.",
    "The stock market fell sharply on Tuesday.",
    "Café naïve – 東京 2024!",
    "oar",
]


def main():
    source, target = sys.argv[1], pathlib.Path(sys.argv[2])
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    # f64: the reference is then exact to f32, and the error measured against it is all ours.
    encoder = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").double().eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = encoder(**batch).last_hidden_state  # [sentences, tokens, width]
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    embedding = torch.nn.functional.normalize(mean, dim=1)
    target.mkdir(parents=True, exist_ok=True)
    np.save(target / "minilm_ids.npy", batch["input_ids"].numpy())
    np.save(target / "minilm_mask.npy", batch["attention_mask"].numpy())
    np.save(target / "minilm_hidden_0.npy", hidden[0].float().numpy())
    np.save(target / "minilm_embedding.npy", embedding.float().numpy())
    facts = {"sentences": SENTENCES, "torch": torch.__version__, "transformers": transformers.__version__}
    (target / "minilm.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


main()
