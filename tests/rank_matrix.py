# Random layouts against one rank: network, optimizer, precision, recomputation, schedule and mesh are drawn by a seed;
# losses, norms and every state must be one rank's, to the bit where only dp and ZeRO differ.
# tier: all
# timeout: 240
import argparse
import random
import tempfile
from pathlib import Path

import numpy as np

from _serving import run_cases
from _training import make_patterns, read_log, tensors, train

STEPS = 3
TOKENS = {"format": "characters", "context": 16, "stride": 8}
# Network: its options, what it reads, whether tensor-parallel ranks may split it.
NETWORKS = {
    "mlp": ("size: 12, hidden: [40, 24], classes: 4, dropout: 0.1", {}, True),
    "cnn": ("size: 12, classes: 4", {}, False),
    "small_resnet": ("size: 12, classes: 4, width: 8, depth: 8", {}, False),
    "vit": ("channels: 1, size: 12, patch: 4, width: 32, layers: 4, heads: 4, classes: 4, dropout: 0.1",
            {}, True),
    "gpt2": ("layers: 4, width: 32, heads: 4, positions: 16, vocabulary: 65, dropout: 0.1", TOKENS, True),
    "llama": ("layers: 4, width: 32, heads: 4, kv_heads: 2, inner: 48, positions: 16, vocabulary: 65", TOKENS, True),
}
OPTIMIZERS = {"adamw": 0.003, "sgd": 0.05, "lamb": 0.01, "lars": 0.5, "muon": 0.01, "adafactor": 0.01, "adam": 0.003}
CONFIG = """
run: {{name: matrix, directory: {directory}, steps: {steps}, seed: 5, threads: 1, rank_timeout: 60s}}
model: {{source: "zoo:{network}", config: {{{options}}}}}
data: {data}
batch: {{global: 16}}
loader: {{workers: 0}}
eval: {{at_end: false}}
checkpoint: {{keep: 0}}
save: {{format: none}}
log: {{progress: 0s, tensorboard: false, report: false}}
"""

scratch = tempfile.TemporaryDirectory(prefix="rank_matrix")
ROOM = Path(scratch.name)


def draw(rng):
    """(what is trained, how it is spread over ranks): words of the command line."""
    network = rng.choice(list(NETWORKS))
    kind = rng.choice(list(OPTIMIZERS))
    what = {"network": network, "optimizer.kind": kind, "schedule.lr": OPTIMIZERS[kind],
            "optimizer.clip_norm": rng.choice([0, 0.5]), "optimizer.ema_keep": rng.choice([0, 0.9]),
            "precision.compute": rng.choice(["f32", "f32", "bf16", "f16"]),
            "loss_scale.initial": rng.choice([1024, 2.0 ** 40]),
            "loss.label_smoothing": rng.choice([0, 0.1])}
    # A class token that is repeated over a batch of one looks like a part of it, and is refused over dp.
    what["batch.micro"] = rng.choice([2, 4] if network == "vit" else [1, 1, 2, 4])
    if kind == "sgd":
        what["optimizer.nesterov"] = rng.choice(["true", "false"])
    meshes = [(dp, tp, pp) for dp in (1, 2, 4, 8) for tp in (1, 2, 4) for pp in (1, 2, 4)
              if 1 < dp * tp * pp <= 8 and dp * what["batch.micro"] <= 16
              and (tp == 1 or NETWORKS[network][2]) and (pp < 4 or network != "mlp")]
    dp, tp, pp = rng.choice(meshes)
    how = {"parallel.dp": dp, "parallel.tp": tp, "parallel.pp": pp, "parallel.zero": rng.randrange(4),
           "parallel.bucket_mb": rng.choice([0.001, 4]), "parallel.overlap": rng.choice(["true", "false"]),
           "memory.recompute": rng.choice(["none", "selective", "full"])}
    if tp > 1:
        how["parallel.sequence"] = rng.choice(["true", "false"])
        how["parallel.automatic"] = rng.choice(["true", "true", "false"])
    if pp > 1:
        how["parallel.schedule"] = rng.choice(["gpipe", "1f1b", "interleaved", "zero_bubble"])
        if how["parallel.schedule"] == "interleaved" and pp == 2 and network in ("gpt2", "llama", "vit"):
            how["parallel.chunks"] = 2
    return what, how


def run(name, what, how):
    options, source, _ = NETWORKS[what["network"]]
    data = dict(source, path=str(ROOM / ("text.txt" if source else "images")))
    path, directory = ROOM / f"{name}.yaml", ROOM / name
    path.write_text(CONFIG.format(directory=directory, steps=STEPS, network=what["network"], options=options,
                                  data="{" + ", ".join(f"{k}: {v}" for k, v in data.items()) + "}"))
    words = [word for key, value in {**what, **how}.items() if key != "network" for word in ("--set", f"{key}={value}")]
    code, stderr = train(path, *words)
    assert code == 0, f"exit {code}: trireme train {' '.join(map(str, words))}\n{stderr}"
    steps = [(e["step"], e["loss"], e["grad_norm"], e["skipped"], e["targets"]) for e in read_log(directory)["step"]]
    return steps, tensors(directory, STEPS)


def apart(found, expected, step):
    """The distance of two tensors, in units of the expected one's length and of what `step` in each element makes."""
    if found.dtype == np.uint64:
        return float(not np.array_equal(found, expected))
    a, b = found.view(np.float32).astype(float), expected.view(np.float32).astype(float)
    return np.linalg.norm(a - b) / (np.linalg.norm(b) + step * b.size ** 0.5)


def compare(what, how, found, expected):
    (steps, states), (want_steps, want_states) = found, expected
    assert states.keys() == want_states.keys(), set(states) ^ set(want_states)
    if how["parallel.tp"] == how["parallel.pp"] == 1:
        assert steps == want_steps, f"steps {steps}\nnot {want_steps}"
        wrong = [name for name in states if not np.array_equal(states[name], want_states[name])]
        assert not wrong, f"other bits: {wrong}"
        return
    rough = what["precision.compute"] != "f32"
    for (_, loss, norm, *rest), (_, want_loss, want_norm, *want_rest) in zip(steps, want_steps, strict=True):
        assert rest == want_rest, f"steps {steps}\nnot {want_steps}"
        if rest[0]:  # a skipped step's loss and norm say nothing
            continue
        assert abs(loss - want_loss) <= (1e-2 if rough else 1e-4) * want_loss, f"steps {steps}\nnot {want_steps}"
        assert abs(norm - want_norm) <= (5e-2 if rough else 1e-3) * want_norm, f"steps {steps}\nnot {want_steps}"
    # Adam's first steps have the size of the rate whatever the gradient: where it is rounding, weights differ
    # by so much.
    limit = 0.5 if rough else 2e-2
    wrong = {name: apart(states[name], want_states[name], what["schedule.lr"] * STEPS) for name in states}
    wrong = {name: far for name, far in wrong.items() if not far <= limit}
    assert not wrong, f"apart: {wrong}"


def case(seed):
    what, how = draw(random.Random(seed))
    try:
        expected = run(f"one{seed}", what, {})
        compare(what, how, run(f"many{seed}", what, how), expected)
    except AssertionError as wrong:
        raise AssertionError(f"seed {seed}: {what} {how}: {wrong}") from None


arguments = argparse.ArgumentParser()
arguments.add_argument("--first", type=int, default=1)
arguments.add_argument("--count", type=int, default=24)
arguments = arguments.parse_args()
make_patterns(ROOM / "images", samples=200)
(ROOM / "text.txt").write_text("three banks of oars, one hull; " * 200)
run_cases([(f"seed {seed}", lambda seed=seed: case(seed))
           for seed in range(arguments.first, arguments.first + arguments.count)])
