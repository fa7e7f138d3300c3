# The demo: trains a classifier on Fashion-MNIST, serves and loads it; then a sentence encoder, batching off and on.
import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ROOT / "examples/sentences.txt"
QUERY = "Rowing boats in old times"
ENCODER = "minilm"
CLASSIFIER = "fashion"
FASHION = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
NAMES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]


def link_model(source, target):
    """The encoder's files under the repository, by hard links where the file system allows."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), to)
            except OSError:
                shutil.copy(path, to)


class Server:
    """`trireme serve` on a free port; `seconds` is the time from start to ready."""

    def __init__(self, repository, *options):
        start = time.monotonic()
        self.process = subprocess.Popen(
            [os.environ["TRIREME"], "serve", "--model-repository", repository, "--host", "127.0.0.1",
             "--http-port", "0", "--grpc-port", "0", *options], stderr=subprocess.PIPE, text=True)
        self.url = None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            match = re.search(r"serve ready .*port=(\d+)", line)
            if match:
                self.url = f"http://127.0.0.1:{match[1]}"
                break
        self.seconds = time.monotonic() - start
        if not self.url:
            sys.exit("the server did not start:\n" + "".join(lines))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def batch_counts(self):
        """Rows -> batches so far, from /metrics: buckets hold all sizes up to their bound."""
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        counts, below = {}, 0
        for bound, total in re.findall(r'trireme_batch_rows_bucket\{[^}]*le="(\d+)"\} (\d+)', text):
            counts[int(bound)] = int(total) - below
            below = int(total)
        return counts

    def embed(self, sentences):
        """Embeddings f32 [sentences, width] over the JSON form of the protocol."""
        text = {"name": "text", "datatype": "BYTES", "shape": [len(sentences)], "data": sentences}
        body = {"inputs": [text]}
        request = urllib.request.Request(f"{self.url}/v2/models/{ENCODER}/infer", json.dumps(body).encode())
        output = json.loads(urllib.request.urlopen(request).read())["outputs"][0]
        return np.array(output["data"], np.float32).reshape(output["shape"])

    def classify(self, images):
        """Scores f32 [images, 10] over the binary form of the protocol; images f32 [n, 1, 28, 28]."""
        head = {"inputs": [{"name": "image", "datatype": "FP32", "shape": list(images.shape),
                            "parameters": {"binary_data_size": images.nbytes}}],
                "outputs": [{"name": "logits", "parameters": {"binary_data": False}}]}
        text = json.dumps(head).encode()
        request = urllib.request.Request(f"{self.url}/v2/models/{CLASSIFIER}/infer", text + images.tobytes(),
                                         {"Inference-Header-Content-Length": str(len(text)),
                                          "Content-Type": "application/octet-stream"})
        output = json.loads(urllib.request.urlopen(request).read())["outputs"][0]
        return np.array(output["data"], np.float32).reshape(output["shape"])


def load(server, concurrency, seconds, scratch, model=("--model", ENCODER, "--text-file", SENTENCES)):
    """One closed loop of `trireme load`; requests a second and latencies in ms."""
    report = scratch / "load.json"
    done = subprocess.run(
        [os.environ["TRIREME"], "load", server.url, *model,
         "--batch", "1", "--concurrency", str(concurrency), "--duration", f"{seconds}s",
         "--warmup", "500ms", "--threads", "1", "--json", report], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    run = json.loads(report.read_text())["runs"][0]
    if run["failed"]:
        sys.exit(f"{run['failed']} requests failed: {run['errors']}")
    return {"rate": run["throughput"]} | {q: run["latency_ns"][q] / 1e6 for q in ("p50", "p95", "p99")}


def measure(server, concurrencies, seconds, scratch):
    """Prints a row for each concurrency; gives sentences a second by concurrency."""
    rates = {}
    print(f"  {'clients':>7} {'sentences/s':>12} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8}  rows a batch")
    for concurrency in concurrencies:
        before = server.batch_counts()
        row = load(server, concurrency, seconds, scratch)
        after = server.batch_counts()
        batches = {rows: after[rows] - before.get(rows, 0) for rows in after}
        total = sum(batches.values()) or 1
        sizes, low = [], 1
        for rows, count in batches.items():
            if count * 50 >= total:
                sizes.append(f"{low if low == rows else f'{low}-{rows}'}: {100 * count / total:.0f} %")
            low = rows + 1
        rates[concurrency] = row["rate"]
        print(f"  {concurrency:7} {row['rate']:12.1f} {row['p50']:8.2f} {row['p95']:8.2f} {row['p99']:8.2f}  "
              + ", ".join(sizes), flush=True)
    return rates


def nearest(server):
    sentences = SENTENCES.read_text().splitlines()
    vectors = np.concatenate([server.embed(sentences[i:i + 32]) for i in range(0, len(sentences), 32)])
    scores = vectors @ server.embed([QUERY])[0]  # unit vectors: the product is the cosine
    print(f'\nnearest to "{QUERY}":')
    for i in np.argsort(-scores)[:3]:
        print(f"  {scores[i]:.3f}  {sentences[i]}")


def train(scratch, steps):
    """Trains the classifier; gives its model repository."""
    command = [os.environ["TRIREME"], "train", "--quiet"]
    for setting in (f"run.directory={scratch}/run", f"run.name={CLASSIFIER}", f"run.steps={steps}",
                    "model.source=zoo:resnet8", "data.path=fashion-mnist", "validation.split=test", "batch.global=128",
                    "augment.crop=28", "augment.padding=2", "augment.random_crop=true", "augment.flip=true",
                    "augment.normalize=fashion-mnist", "optimizer.kind=sgd", "optimizer.nesterov=true",
                    "optimizer.weight_decay=5e-4", "schedule.lr=0.1", "schedule.warmup_fraction=0.1", "log.progress=10s"):
        command += ["--set", setting]
    if subprocess.run(command, stderr=subprocess.STDOUT, check=False).returncode:
        sys.exit("the training failed")
    return scratch / "run/model"


def test_images(count):
    """The first test images, normalised as in training, and their classes."""
    with gzip.open(FASHION / "t10k-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
    with gzip.open(FASHION / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)[:count]
    return ((images / 255 - 0.2860) / 0.3530).astype(np.float32), labels


def classifier(scratch, steps, concurrencies, seconds):
    """Trains, serves what was trained, checks it over HTTP, and loads it."""
    print(f"training a residual network on Fashion-MNIST, {steps} steps of 128 images", flush=True)
    repository = train(scratch, steps)
    images, labels = test_images(1000)
    with Server(repository) as server:
        print(f"\nserving it (ready after {server.seconds:.2f} s)")
        guesses = np.concatenate([server.classify(images[i:i + 25]).argmax(1) for i in range(0, len(images), 25)])
        print(f"  {100 * (guesses == labels).mean():.1f} % of {len(labels)} test images right over HTTP; the first: "
              + ", ".join(f"{NAMES[g]} ({NAMES[t]})" for g, t in zip(guesses[:4], labels)))
        print(f"  {'clients':>7} {'images/s':>12} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8}")
        for concurrency in concurrencies:
            row = load(server, concurrency, seconds, scratch, ("--model", CLASSIFIER))
            print(f"  {concurrency:7} {row['rate']:12.1f} {row['p50']:8.2f} {row['p95']:8.2f} {row['p99']:8.2f}",
                  flush=True)
    return (guesses == labels).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ci", action="store_true", help="short form")
    args = parser.parse_args()
    seconds = 2 if args.ci else 6
    concurrencies = [1, 16] if args.ci else [1, 4, 16, 64]
    scratch = Path(tempfile.mkdtemp(prefix="trireme-demo-"))
    try:
        right = classifier(scratch, 60 if args.ci else 468, concurrencies, seconds)
        if right < (0.5 if args.ci else 0.8):
            sys.exit("the classifier learned too little")
        repository = scratch / "models"
        link_model(Path(os.environ["TRIREME_ENCODER"]), repository / ENCODER)
        rates = {}
        for name, options in (("batching off", ["--max-batch", "1"]), ("batching on", [])):
            with Server(repository, *options) as server:
                print(f"\n{name} (ready after {server.seconds:.2f} s)")
                rates[name] = measure(server, concurrencies, seconds, scratch)
                if name == "batching on":
                    nearest(server)
        on, off = rates["batching on"], rates["batching off"]
        print("\nthroughput with batching / without: "
              + ", ".join(f"{on[c] / off[c]:.2f}x at {c} clients" for c in concurrencies))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


main()
