# Writes tests/networks/*.json: what PyTorch and Transformers make of small networks of every family.
#
# Run once with the versions of tools/requirements-oracles.txt; the results are committed (about 5 minutes):
#   python tools/oracles/networks.py tests/networks [NAME...]
#
# Weights and inputs are functions of (name, index) that this script and tests/network_case.cc compute alike, so none
# are carried. Each file holds the case, the inference logits, the loss and the gradients in f64, and the losses of 50
# training steps in f32. Rates are such that f32 and f64 of PyTorch agree over these steps.
import json
import math
import pathlib
import re
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers

STEPS, BATCHES = 50, 4  # step k trains on batch k mod 4


def bits(name, count):
    """64 random bits for each index: splitmix64 over the FNV-1a hash of the name."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        x = np.uint64(h) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def uniform(name, count):
    """f32 in [-1, 1), exact."""
    return (bits(name, count) >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)


def weight(name, shape):
    u, one, count = uniform(name, math.prod(shape)), np.float32(1), math.prod(shape)
    if name.endswith("running_var") or (len(shape) == 1 and name.endswith(".weight")):
        values = one + u * np.float32(0.25)
    elif len(shape) == 1:
        values = u * np.float32(0.125)
    else:
        fan = count // shape[0]
        values = u * np.float32(2.0 ** math.floor(0.5 * math.log2(3 / fan) + 0.5))
    return torch.from_numpy(values.reshape(shape))


def make_input(spec, name, batch):
    """One input of one batch. `spec`: dims, then modulo (integers; ignored of 4 become -100), prefix (masks) or scale."""
    dims, name = spec["dims"], f"{name}#{batch}"
    count = math.prod(dims)
    if "prefix" in spec:
        return torch.tensor([[int(i < n) for i in range(dims[1])] for n in spec["prefix"]])
    if "modulo" in spec:
        b = bits(name, count)
        values = (b % np.uint64(spec["modulo"])).astype(np.int64)
        values[(b >> np.uint64(60)) % np.uint64(4) < np.uint64(spec.get("ignored", 0))] = -100
    else:
        values = uniform(name, count) * np.float32(spec["scale"])
    return torch.from_numpy(values.reshape(dims))


class Own:
    """A network written here, over weights by name that appear when they are asked for."""

    def __init__(self, forward, dtype):
        self.forward, self.dtype, self.weights, self.training = forward, dtype, {}, False

    def p(self, name, *shape):
        if name not in self.weights:
            w = weight(name, shape).to(self.dtype)
            self.weights[name] = w if "running_" in name else w.requires_grad_()
        return self.weights[name]

    def linear(self, x, name, i, o):
        return F.linear(x, self.p(name + ".weight", o, i), self.p(name + ".bias", o))

    def layer_norm(self, x, name, w, eps=1e-5):
        return F.layer_norm(x, (w,), self.p(name + ".weight", w), self.p(name + ".bias", w), eps)

    def batch_norm(self, x, name, c):
        return F.batch_norm(x, self.p(name + ".running_mean", c), self.p(name + ".running_var", c), self.p(
            name + ".weight", c), self.p(name + ".bias", c), self.training, 0.1, 1e-5)

    def attend(self, q, k, v, heads, mask=None):
        q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        if mask is not None:
            mask = mask[:, None, None, :].bool()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    def parameters(self):
        return [w for w in self.weights.values() if w.requires_grad]

    def __call__(self, inputs):
        return self.forward(self, **inputs)


def mlp(net, image):
    x = F.relu(net.linear(image.flatten(1), "fc1", 64, 32))
    return {"logits": net.linear(F.relu(net.linear(x, "fc2", 32, 16)), "head", 16, 10)}


def cnn(net, image):
    x = F.relu(F.conv2d(image, net.p("conv1.weight", 8, 1, 3, 3), net.p("conv1.bias", 8)))
    x = F.relu(F.conv2d(x, net.p("conv2.weight", 16, 8, 3, 3), net.p("conv2.bias", 16)))
    x = F.max_pool2d(x, 2).flatten(1)
    return {"logits": net.linear(F.relu(net.linear(x, "fc1", 16 * 16, 32)), "fc2", 32, 10)}


def small_resnet(net, image):
    def conv_norm(x, name, i, o, k, s):
        x = F.conv2d(x, net.p(name + "convolution.weight", o, i, k, k), stride=s, padding=k // 2)
        return net.batch_norm(x, name + "normalization", o)

    x = F.relu(conv_norm(image, "resnet.embedder.embedder.", 1, 8, 3, 1))
    inside = 8
    for stage, width in enumerate([8, 16, 32]):
        at, s = f"resnet.encoder.stages.{stage}.layers.0.", 2 if stage else 1
        y = F.relu(conv_norm(x, at + "layer.0.", inside, width, 3, s))
        y = conv_norm(y, at + "layer.1.", width, width, 3, 1)
        x = F.relu(y + (conv_norm(x, at + "shortcut.", inside, width, 1, s) if stage else x))
        inside = width
    return {"logits": net.linear(x.mean((2, 3)), "classifier.1", 32, 10)}


def perception(net, image, points, points_mask):
    x, inside, w = image, 3, 16
    for i, out in enumerate([8, 16, 16]):
        x = F.conv2d(x, net.p(f"camera.{i}.conv.weight", out, inside, 3, 3), stride=2, padding=1)
        x, inside = F.relu(net.batch_norm(x, f"camera.{i}.norm", out)), out
    x = x.flatten(2).transpose(1, 2) + net.p("camera.positions", 1, 16, w)
    p = net.linear(F.relu(net.linear(points, "points.fc1", 4, w)), "points.fc2", w, w)
    p = net.layer_norm(p, "points.norm", w)
    for i in range(2):
        at = f"fusion.{i}."

        def attend(x, what, source, mask):
            operands = (x, ".query"), (source, ".key"), (source, ".value")
            q, k, v = (net.linear(t, at + what + n, w, w) for t, n in operands)
            return net.linear(net.attend(q, k, v, 2, mask), at + what + ".out", w, w)

        x = x + attend(net.layer_norm(x, at + "cross_norm", w), "cross", p, points_mask)
        y = net.layer_norm(x, at + "self_norm", w)
        x = x + attend(y, "self", y, None)
        y = F.gelu(net.linear(net.layer_norm(x, at + "mlp_norm", w), at + "fc1", w, 4 * w))
        x = x + net.linear(y, at + "fc2", 4 * w, w)
    x = net.layer_norm(x, "norm", w)
    return {"class_logits": net.linear(x, "class_head", w, 4), "boxes": net.linear(x, "box_head", w, 4)}


def our_name(name):
    """Our weight and, of one with stacked parts, which part: Transformers' query is part 0 of our qkv."""
    name = re.sub(r"^vit\.layers\.", "vit.encoder.layer.", name)
    if name.startswith("vit.encoder"):
        name = re.sub(r"attention\.([qkv])_proj", lambda m: "attention.attention." + m[1], name)
        name = name.replace("attention.o_proj", "attention.output.dense")
        name = name.replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")
    for part, words in enumerate([("query", "q"), ("key", "k"), ("value", "v")]):
        for before in ("attention.self.", "attention.attention."):
            for word in words:
                if f"{before}{word}." in name:
                    return name.replace(f"{before}{word}.", f"{before}qkv."), part
    return name, None


class Theirs:
    """A network of Transformers, its weights set by our names."""

    def __init__(self, make, dtype):
        self.net = make()
        for name, p in list(self.net.named_parameters()) + list(self.net.named_buffers()):
            ours, part = our_name(name)
            if not p.is_floating_point() or "rotary" in name:
                continue
            shape = list(p.shape)
            if part is not None:
                shape[0] *= 3
            values = weight(ours, shape)
            with torch.no_grad():
                p.copy_(values if part is None else values.chunk(3)[part])
        self.net.to(dtype)

    @property
    def weights(self):
        return dict(self.net.named_parameters())

    @property
    def training(self):
        return self.net.training

    @training.setter
    def training(self, on):
        self.net.train(on)

    def parameters(self):
        return list(self.net.parameters())

    def __call__(self, inputs):
        names = {"image": "pixel_values"}
        return {"logits": self.net(**{names.get(k, k): v for k, v in inputs.items()}).logits}


def loss_of(case, out, inputs):
    """Sum over valid rows, and their number."""
    logits = out["class_logits" if case["loss"] == "detection" else "logits"]
    labels = inputs["labels"]
    total = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum")
    if case["loss"] == "detection":
        error = (out["boxes"] - inputs["box_labels"]).abs().mean(-1)
        total = total + (error * (labels > 0)).sum()
    return total, int((labels != -100).sum()), int((logits.argmax(-1) == labels).sum())


def batch_of(case, batch, dtype):
    inputs = {n: make_input(s, n, batch) for n, s in case["inputs"].items()}
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}


def run(net, case, batch, dtype):
    inputs = batch_of(case, batch, dtype)
    out = net({n: t for n, t in inputs.items() if not n.endswith("labels")})
    return out, loss_of(case, out, inputs)


def round_to(x, digits=9):
    return float(f"{x:.{digits}g}")


def gradients(net):
    """By our name: sum, norm and the first values, the parts of stacked weights joined."""
    parts = {}
    for name, p in net.weights.items():
        if p.requires_grad and p.grad is not None:
            ours, part = our_name(name)
            parts.setdefault(ours, {})[part or 0] = p.grad
    out = {}
    for name, grads in parts.items():
        g = torch.cat([grads[i] for i in sorted(grads)]).flatten()
        out[name] = {"sum": round_to(g.sum().item()), "norm": round_to(g.norm().item()),
                     "first": [round_to(v) for v in g[:4].tolist()]}
    return out


def optimizer_of(case, net):
    weights = net.parameters()
    if case["optimizer"] == "sgd":
        return torch.optim.SGD([{"params": [p for p in weights if p.ndim > 1], "weight_decay": 1e-4},
                                {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0}],
                               lr=case["lr"], momentum=0.9)
    return torch.optim.AdamW([{"params": [p for p in weights if p.ndim > 1], "weight_decay": 0.01},
                              {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0}], lr=case["lr"])


def trajectory(case, make, dtype):
    net = make(dtype)
    net.training = True
    if isinstance(net, Own):
        with torch.no_grad():  # the weights appear at the first call, which must not move the statistics
            net.training = False
            run(net, case, 0, dtype)
            net.training = True
    optimizer = optimizer_of(case, net)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, (total, count, _) = run(net, case, step % BATCHES, dtype)
        (total / count).backward()
        optimizer.step()
        losses.append(round_to(total.item() / count))
    return losses


def write(case, make, directory, parts):
    """`parts`: "all", "steps" (networks of full size) or "rough": batch norms over few values, so that 50 steps in f32
    and in f64 part. The losses are then those in f64, and `losses_within` is three times what PyTorch's own steps in
    f32 miss them by at most, relative to the loss or a tenth of the first one."""
    result = dict(case)
    if parts != "steps":
        net = make(torch.float64)
        net.training = False
        with torch.no_grad():
            out, _ = run(net, case, 0, torch.float64)
        result["outputs"] = {n: [round_to(v) for v in t.flatten()[:200].tolist()] for n, t in out.items()}
        net.training = True
        _, (total, count, correct) = run(net, case, 0, torch.float64)
        (total / count).backward()
        result.update(loss_sum=round_to(total.item(), 12), count=count, correct=correct, gradients=gradients(net))
    result["losses"] = trajectory(case, make, torch.float32)
    if parts == "rough":
        rounded, result["losses"] = result["losses"], trajectory(case, make, torch.float64)
        floor = result["losses"][0] / 10
        within = max(abs(a - b) / max(b, floor) for a, b in zip(rounded, result["losses"]))
        result.update(losses_floor=round_to(floor, 3), losses_within=round_to(3 * within, 2))
    text = json.dumps(result).replace('}, "', '},\n"')
    (directory / f"{case['name']}.json").write_text(text + "\n")
    print(case["name"], len(text), *result.get("losses", [])[::49], flush=True)


def tokens(batch, seq, vocabulary, **more):
    return {"input_ids": {"dims": [batch, seq], "modulo": vocabulary}, **more,
            "labels": {"dims": [batch, seq], "modulo": vocabulary, "ignored": 1}}


def images(batch, channels, size, classes=10):
    return {"image": {"dims": [batch, channels, size, size], "scale": 1.0},
            "labels": {"dims": [batch], "modulo": classes}}


def case(name, network, options, inputs, make, optimizer="adamw", lr=1e-3, loss="cross_entropy", parts="all"):
    return ({"name": name, "network": network, "options": options, "loss": loss, "optimizer": optimizer, "lr": lr,
             "inputs": inputs}, make, parts)


def theirs(cls, config):
    return lambda dtype: Theirs(lambda: cls(config), dtype)


def own(forward):
    return lambda dtype: Own(forward, dtype)


T = transformers
NO_DROP = {"attn_implementation": "eager"}
GPT2 = T.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, embd_pdrop=0, resid_pdrop=0,
                    attn_pdrop=0, bos_token_id=None, eos_token_id=None, **NO_DROP)
LLAMA = T.LlamaConfig(vocab_size=50, max_position_embeddings=16, hidden_size=32, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, rms_norm_eps=1e-5,
                      tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, **NO_DROP)
BERT = dict(vocab_size=50, max_position_embeddings=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **NO_DROP)
VIT = T.ViTConfig(num_channels=1, image_size=12, patch_size=4, hidden_size=32, num_hidden_layers=2,
                  num_attention_heads=4, intermediate_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
                  num_labels=10, **NO_DROP)
RESNET18 = T.ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
                          layer_type="basic", num_labels=10)
GPT2_SMALL = T.GPT2Config(embd_pdrop=0, resid_pdrop=0, attn_pdrop=0, **NO_DROP)
BERT_SMALL = T.BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048,
                          hidden_dropout_prob=0, attention_probs_dropout_prob=0, **NO_DROP)
SMALL_TEXT = ["vocabulary=50", "positions=16", "width=32", "layers=2", "heads=4"]
MASK = {"attention_mask": {"dims": [3, 8], "prefix": [8, 5, 7]}}

CASES = [
    case("mlp", "mlp", ["size=8", "hidden=[32, 16]"], images(6, 1, 8), own(mlp)),
    case("cnn", "cnn", ["size=12", "width1=8", "width2=16", "hidden=32", "dropout=0"], images(6, 1, 12), own(cnn),
         "sgd", 0.01),
    case("small_resnet", "small_resnet", ["size=16", "width=8"], images(6, 1, 16), own(small_resnet), "sgd", 0.02),
    case("resnet18", "resnet18", ["size=64", "classes=10"], images(4, 3, 64),
         theirs(T.ResNetForImageClassification, RESNET18), "sgd", parts="rough"),
    case("gpt2", "gpt2", SMALL_TEXT, tokens(3, 8, 50), theirs(T.GPT2LMHeadModel, GPT2)),
    case("llama", "llama", SMALL_TEXT + ["kv_heads=2", "inner=48", "is_tied=false"], tokens(3, 8, 50),
         theirs(T.LlamaForCausalLM, LLAMA)),
    case("bert", "bert", SMALL_TEXT + ["inner=64"], tokens(3, 8, 50, **MASK),
         theirs(T.BertForMaskedLM, T.BertConfig(**BERT))),
    case("bert_classes", "bert", SMALL_TEXT + ["inner=64", "head=classification", "classes=3"],
         {"input_ids": {"dims": [3, 8], "modulo": 50}, **MASK, "labels": {"dims": [3], "modulo": 3}},
         theirs(T.BertForSequenceClassification, T.BertConfig(**BERT, num_labels=3))),
    case("vit", "vit", ["channels=1", "size=12", "patch=4", "width=32", "layers=2", "heads=4", "inner=64",
                        "classes=10"], images(6, 1, 12), theirs(T.ViTForImageClassification, VIT)),
    case("perception", "perception", ["size=32", "stem_width=8", "width=16", "heads=2"],
         {"image": {"dims": [2, 3, 32, 32], "scale": 1.0}, "points": {"dims": [2, 6, 4], "scale": 2.0},
          "points_mask": {"dims": [2, 6], "prefix": [6, 4]}, "labels": {"dims": [2, 16], "modulo": 4, "ignored": 1},
          "box_labels": {"dims": [2, 16, 4], "scale": 1.0}}, own(perception), loss="detection"),
    case("resnet18_224", "resnet18", ["classes=10"], images(4, 3, 224),
         theirs(T.ResNetForImageClassification, RESNET18), "sgd", 1e-5, parts="steps"),
    case("gpt2_small", "gpt2", [], tokens(1, 32, 50257), theirs(T.GPT2LMHeadModel, GPT2_SMALL), lr=1e-5, parts="steps"),
    case("bert_small", "bert", ["layers=4", "width=512", "heads=8"],
         tokens(2, 32, 30522, attention_mask={"dims": [2, 32], "prefix": [32, 21]}),
         theirs(T.BertForMaskedLM, BERT_SMALL), lr=1e-5, parts="steps"),
]


def main():
    directory, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    directory.mkdir(parents=True, exist_ok=True)
    torch.use_deterministic_algorithms(True)
    for spec, make, parts in CASES:
        if not wanted or spec["name"] in wanted:
            write(spec, make, directory, parts)


main()
