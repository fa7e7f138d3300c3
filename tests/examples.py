# Runs every file of examples/ as a reader would and looks for what each must print.
# timeout: 240
import os
import re
import subprocess
import sys
from pathlib import Path

from _serving import ROOT, TRIREME, encoder_dir, run_cases

EXAMPLES = ROOT / "examples"
NEEDS_ENCODER = {"03_embed_sentences.cc", "04_serve_and_call.py"}
MOST_LINES = 80
# What the output must hold, as regular expressions in order.
SHOWS = {
    "01_run_a_model.sh": [r"resnet18\.onnx: 46\.\d MB", r"\.npy", r"p50 [\d.]+ us", r"channels_last",
                          r"planned peak [\d.]+ MiB", r"conv_nhwc .*: \w+"],
    "02_build_a_graph.cc": [r"input \"x\" : f32\[batch,4\]", r"relu\(", r"activation=\"relu\"",
                            # softmax of relu(2 * (0, 0.5, 1) + (0, 0.5, -1)) = softmax of (0, 1.5, 1)
                            r"batch 1: .*first row 0\.1220 0\.5465 0\.3315",
                            r"batch 8: .*\[8,3\], first row 0\.1220 0\.5465 0\.3315"],
    "03_embed_sentences.cc": [r"vectors \[2,384\], cosine 0\.[4-9]\d*"],
    "04_serve_and_call.py": [r"cat sleep\? .*-> A kitten", r"umbrella .*-> Rain", r"warships .*-> Galleys",
                             r"server ended with 0"],
    "05_custom_pass.cc": [r"changed 1 place\(s\)", r"before:\n", r"pow\(%3, %2\)", r"pow\(%0, %1\)", r"after:\n",
                          r"pow\(%0, %1\)", r"mul\(%2, %2\)",
                          r"largest difference .*: [\d.e-]+"],
    "07_train_and_serve.sh": [r"evaluated step=200", r"restarted .*step=120", r"equal, bit for bit", r"20 runs", r"report\.md"],
    "08_train_on_ranks.sh": [r"16 micro x 8 accumulate x 1 dp", r"x 2 dp", r"x 4 dp", r"equal, bit for bit", r"launch start",
                             r"still equal", r"tensors-r00003-00000\.safetensors", r"20 runs"],
    "09_tune.sh": [r"goal: p99 within 250ms", r"requests a second, p99 [\d.]+ ms", r"predicted", r"report\.html",
                   r"max_batch_size: \d", r"instance_group", r"configurations, [1-9]\d* measurements resumed",
                   r"trireme serve --model-repository"],
    "06_load_test.sh": [r"Closed loop", r"Open loop", r"p99", r"execution_count\":[1-9]"],
}


def command(path):
    if path.suffix == ".cc":
        return [Path(TRIREME).parent / "examples" / path.stem]
    return [sys.executable, path] if path.suffix == ".py" else ["bash", path]


def check(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= MOST_LINES, f"{len(lines)} lines, at most {MOST_LINES}"
    env = dict(os.environ, TRIREME=TRIREME)
    if path.name in NEEDS_ENCODER:
        env["TRIREME_ENCODER"] = str(encoder_dir())
    run = subprocess.run(command(path), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, timeout=100)
    assert run.returncode == 0, f"ended with {run.returncode}:\n{run.stdout}"
    at = 0
    for pattern in SHOWS[path.name]:
        found = re.compile(pattern).search(run.stdout, at)
        assert found, f"does not show {pattern!r} (in order):\n{run.stdout}"
        at = found.end()


def cases():
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix in (".cc", ".py", ".sh"):
            yield path.name, lambda path=path: check(path)


run_cases(cases())
