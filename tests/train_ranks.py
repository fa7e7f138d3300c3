# Training on many ranks: every data-parallel size and ZeRO stage ends with the same bits, under MPI too; resumed on
# fewer and more ranks; served from the checkpoint as it lies.
# timeout: 200
import hashlib
import json
import signal
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

import _ranks
from _serving import Server, Skip, run_cases
from _training import INTERRUPTED, finish, make_patterns, read_log, start, tensors, train

STEPS = 12
CONFIG = """
run: {{name: ranks, directory: {directory}, steps: {steps}, seed: 5, threads: 1}}
model: {{source: "zoo:mlp", config: {{size: 12, hidden: [40, 24], classes: 4, dropout: 0.1}}}}
data: {{path: {data}, hold_out: 0.2}}
batch: {{global: 32, micro: 4}}
loader: {{workers: 1}}
optimizer: {{kind: adamw, ema_keep: 0.99, clip_norm: 1}}
schedule: {{lr: 0.005}}
eval: {{every: 6}}
checkpoint: {{every: 4, keep: 0}}
log: {{progress: 0s, tensorboard: false}}
"""

scratch = tempfile.TemporaryDirectory(prefix="train_ranks")
ROOM = Path(scratch.name)
IMAGES, LABELS = make_patterns(ROOM / "data")


def configure(name, steps=STEPS, text=CONFIG):
    path = ROOM / f"{name}.yaml"
    path.write_text(text.format(directory=ROOM / name, data=ROOM / "data", steps=steps))
    return path, ROOM / name


def outcome(directory):
    """What must not depend on the ranks: losses, norms, evaluations, every state, the model."""
    events = read_log(directory)
    steps = [(e["step"], e["targets"], e["loss"], e["grad_norm"], e["accuracy"]) for e in events["step"]]
    evals = [(e["step"], e["targets"], e["loss"], e["accuracy"]) for e in events["eval"]]
    model = hashlib.sha256((directory / "model/ranks/1/model.onnx").read_bytes()).hexdigest()
    return {"steps": steps, "evals": evals, "model": model,
            "tensors": {step: tensors(directory, step) for step in (4, STEPS)}}


def expect_same(directory, reference):
    mine = outcome(directory)
    for step, states in reference["tensors"].items():
        assert mine["tensors"][step].keys() == states.keys(), step
        for name, bits in states.items():
            assert np.array_equal(mine["tensors"][step][name], bits), f"{directory.name}: {name} at step {step}"
    for part in ("steps", "evals", "model"):
        assert mine[part] == reference[part], f"{directory.name}: {part} differ"


known = {}


def one_rank():
    if not known:
        path, directory = configure("one")
        code, stderr = train(path)
        assert code == 0, stderr
        known["one"] = outcome(directory)
        assert known["one"]["evals"][-1][3] > 0.5, known["one"]["evals"]
    return known["one"]


def every_size_and_stage_has_the_same_bits():
    for ranks in (2, 4):
        for zero in range(4):
            path, directory = configure(f"dp{ranks}zero{zero}")
            code, stderr = train(path, "--dp", ranks, "--zero", zero)
            assert code == 0, stderr
            expect_same(directory, one_rank())
    files = {path.name for path in (directory / "checkpoints/step-00000004").iterdir()}
    assert len(files) == 5, files  # four ranks wrote their parts


def mpi_ranks_have_the_same_bits():
    if reason := _ranks.why_no_mpi():
        raise Skip(reason)
    for ranks, zero in ((2, 3), (4, 1)):
        path, directory = configure(f"mpi{ranks}zero{zero}")
        code, output = _ranks.run(ranks, [_ranks.TRIREME, "train", path, "--quiet", "--dp", ranks, "--zero", zero])
        assert code == 0, output
        expect_same(directory, one_rank())


def resumed_on_fewer_and_more_ranks():
    path, directory = configure("moved")
    for steps, words in ((4, ("--dp", 4, "--zero", 3)), (8, ("--dp", 1)), (10, ("--dp", 2, "--zero", 2)),
                         (STEPS, ("--dp", 4))):
        # The schedule is of the whole run; only its end moves.
        code, stderr = train(path, "--resume", "auto", "--run.steps", steps, "--schedule.total", STEPS * 32, *words)
        assert code == 0, stderr
    reference = one_rank()
    states = tensors(directory, STEPS)
    for name, bits in reference["tensors"][STEPS].items():
        assert np.array_equal(states[name], bits), name
    events = read_log(directory)
    losses = [(e["step"], e["loss"]) for e in events["step"]]
    assert losses == [(e[0], e[2]) for e in reference["steps"]], losses
    assert [(e["ranks_before"], e["ranks"], e["lost_steps"]) for e in events["restarted"]] == [
        (4, 1, 0), (1, 2, 0), (2, 4, 0)], events["restarted"]


NORMS = """
run: {{name: ranks, directory: {directory}, steps: {steps}, seed: 5, threads: 1}}
model: {{source: "zoo:resnet8", config: {{size: 12, classes: 4, width: 8}}}}
data: {{path: {data}, hold_out: 0.2}}
augment: {{crop: 12, padding: 2, random_crop: true, flip: true}}
batch: {{global: 32, micro: 4}}
loader: {{workers: 1}}
optimizer: {{kind: sgd, clip_norm: 1}}
schedule: {{lr: 0.05}}
checkpoint: {{every: 4, keep: 0}}
log: {{progress: 0s, tensorboard: false}}
"""


def batch_norms_and_augmentation_too():
    """Statistics belong to the micro-batch, random crops to the sample; stages of a pipeline keep the bits as well."""
    reference = None
    for name, words in (("bn1", ()), ("bn2", ("--dp", 2, "--zero", 1)), ("bn4", ("--dp", 4, "--zero", 3)),
                        ("bnpp", ("--dp", 2, "--pp", 2, "--zero", 2))):
        path, directory = configure(name, text=NORMS)
        code, stderr = train(path, *words)
        assert code == 0, f"{words}: {stderr}"
        reference = reference or outcome(directory)
        expect_same(directory, reference)


GPT = """
run: {{name: gpt, directory: {directory}, steps: 4, seed: 5, threads: 1}}
model: {{source: "zoo:gpt2", config: {{layers: 8, width: 32, heads: 4, positions: 16, vocabulary: 64, dropout: 0.1}}}}
data: {{path: {data}, format: characters, context: 16, stride: 8}}
batch: {{global: 16, micro: 2}}
loader: {{workers: 0}}
optimizer: {{kind: adamw, clip_norm: 1}}
schedule: {{lr: 0.003, total: 96}}
eval: {{at_end: false}}
checkpoint: {{every: 4, keep: 0}}
save: {{format: none}}
log: {{progress: 0s, tensorboard: false}}
"""


def any_layout_goes_on_from_any_other():
    (ROOM / "text.txt").write_text("three banks of oars, one hull; " * 200)
    path = ROOM / "gpt.yaml"
    path.write_text(GPT.format(directory=ROOM / "gpt", data=ROOM / "text.txt"))
    code, stderr = train(path, "--dp", 2, "--tp", 2, "--pp", 2, "--zero", 1)
    assert code == 0, stderr
    saved = ROOM / "gpt/checkpoints/step-00000004"
    steps = {}
    for layout in ((1, 4, 1), (4, 1, 2), (8, 1, 1), (1, 1, 8), (2, 2, 2), (1, 1, 1)):
        directory = ROOM / "gpt{}{}{}".format(*layout)
        words = [word for axis, n in zip(("--dp", "--tp", "--pp"), layout) for word in (axis, n)]
        code, stderr = train(path, "--run.directory", directory, "--resume", saved, "--run.steps", 6, *words)
        assert code == 0, f"{layout}: {stderr}"
        steps[layout] = [(e["step"], e["loss"], e["grad_norm"]) for e in read_log(directory)["step"]]
    expected = steps[1, 1, 1]
    for layout, found in steps.items():
        for (step, loss, norm), (want_step, want_loss, want_norm) in zip(found, expected, strict=True):
            assert step == want_step and abs(loss - want_loss) < 2e-6 * want_loss, f"{layout}: {found} not {expected}"
            assert abs(norm - want_norm) < 2e-5 * want_norm, f"{layout}: {found} not {expected}"
    assert steps[8, 1, 1] == expected, "data-parallel ranks change bits"
    if not _ranks.why_no_mpi():  # processes and threads of one layout have the same bits
        code, output = _ranks.run(8, [_ranks.TRIREME, "train", path, "--quiet", "--run.directory", ROOM / "gptmpi",
                                      "--resume", saved, "--run.steps", 6, "--dp", 2, "--tp", 2, "--pp", 2])
        assert code == 0, output
        found = [(e["step"], e["loss"], e["grad_norm"]) for e in read_log(ROOM / "gptmpi")["step"]]
        assert found == steps[2, 2, 2], f"MPI: {found} not {steps[2, 2, 2]}"


def a_strategy_file_says_the_same():
    strategy = ROOM / "strategy.yaml"
    strategy.write_text("dp: 2\nzero: 1\n")
    path, directory = configure("by_file")
    code, stderr = train(path, "--strategy", strategy)
    assert code == 0, stderr
    expect_same(directory, one_rank())
    assert 'batch="32 = 4 micro x 4 accumulate x 2 dp"' in stderr, stderr
    strategy.write_text("dp: 2\nzerro: 1\n")
    code, stderr = train(path, "--strategy", strategy)
    assert code == 2 and "strategy.yaml:2" in stderr and "'zero'" in stderr, stderr
    code, stderr = train(path, "--dp", 3)
    assert code == 2 and "not a multiple of micro 4 x dp 3" in stderr, stderr


def a_signal_stops_all_ranks_at_one_step():
    path, directory = configure("stopped", 1000000)
    process = start(path, "--dp", 2, "--zero", 2)
    while not (directory / "checkpoints/latest").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    code, stderr = finish(process)
    assert code == INTERRUPTED, f"exit {code}: {stderr}"
    at = read_log(directory)["end"][0]["step"]
    assert (directory / f"checkpoints/step-{at:08d}/index.json").exists()


def answers(server, model):
    images = (IMAGES[:32].reshape(32, 1, 12, 12) / np.float32(255)).astype(np.float32)
    body = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "shape": list(images.shape),
                                   "data": images.ravel().tolist()}]}).encode()
    answer = json.load(urllib.request.urlopen(f"{server.url}/v2/models/{model}/infer", data=body, timeout=30))
    return np.array(answer["outputs"][0]["data"]).reshape(32, 4)


def a_run_is_served_as_it_lies():
    """From the parts that ranks wrote; and while the run goes on, its newer checkpoints take over."""
    (ROOM / "live").mkdir()
    path, directory = configure("live/served", 60)
    words = ("--zero", 3, "--save.format", "none", "--schedule.total", 12800)
    code, stderr = train(path, "--dp", 2, *words)
    assert code == 0, stderr
    with Server(directory) as server:
        first = answers(server, "served")
    with Server(ROOM / "live", "--model-control", "poll", "--poll-interval", "50ms") as server:
        assert np.array_equal(answers(server, "served"), first)
        code, stderr = train(path, "--dp", 4, "--resume", "auto", "--run.steps", 120, *words)
        assert code == 0, stderr
        end = time.monotonic() + 20
        while sum("model_ready" in line for line in server.log) < 2 or np.array_equal(answers(server, "served"), first):
            assert time.monotonic() < end, server.log
            time.sleep(0.02)
        time.sleep(0.3)  # the last checkpoint takes over
        right = (answers(server, "served").argmax(1) == LABELS[:32]).mean()
    assert right > 0.95, f"{right:.3f} of the served answers are right"


run_cases([(case.__name__, case) for case in (
    every_size_and_stage_has_the_same_bits, batch_norms_and_augmentation_too, mpi_ranks_have_the_same_bits,
    resumed_on_fewer_and_more_ranks, any_layout_goes_on_from_any_other, a_strategy_file_says_the_same,
    a_signal_stops_all_ranks_at_one_step, a_run_is_served_as_it_lies)])
