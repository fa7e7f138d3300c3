# The page at `/` in a real browser: numbers that move under traffic, the form, no error, nothing from elsewhere.
# tier: all
# timeout: 300
import json
import os
import random
import shutil
import threading
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from _browser import browse
from _serving import Server, Skip, add_simple, add_slow, encoder_dir, link_tree, run_cases, temporary
from serve_text import make_model

repository = temporary()
add_simple(repository)
add_slow(repository, "dense", 1)
(repository / "broken" / "1").mkdir(parents=True)
(repository / "broken" / "1" / "model.onnx").write_bytes(b"nonsense")
try:
    link_tree(encoder_dir(), repository / "minilm")
    has_encoder = True
except Skip:
    has_encoder = False


class Traffic:
    """Clients that ask without a pause while the page is looked at."""

    def __init__(self, server, clients=6):
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(server, n)) for n in range(clients)]
        if has_encoder:
            self.threads += [threading.Thread(target=self._ask_text, args=(server, n)) for n in range(3)]

    def _ask(self, server, number):
        client = triton.InferenceServerClient(server.address)
        rows = 1 + number % 4
        inputs = [triton.InferInput(f"INPUT{i}", [rows, 16], "INT32") for i in (0, 1)]
        for x in inputs:
            x.set_data_from_numpy(np.ones((rows, 16), np.int32))
        while not self.stop.wait(0.004):
            client.infer("simple", inputs)

    def _ask_text(self, server, number):
        client = triton.InferenceServerClient(server.address)
        rng = random.Random(number)
        while not self.stop.wait(rng.expovariate(12)):
            texts = [" ".join(["oars"] * rng.randint(1, 30)) for _ in range(rng.choice((1, 1, 2, 4)))]
            text = triton.InferInput("text", [len(texts)], "BYTES")
            text.set_data_from_numpy(np.array(texts, dtype=object))
            client.infer("minilm", [text])

    def __enter__(self):
        for t in self.threads:
            t.start()

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()


def cell(model, column):
    return (f"[...document.querySelectorAll('#models tr')].find(r=>r.dataset.key.startsWith('{model}/'))"
            f".querySelector('[data-of={column}]').textContent")


def choose(model):
    return f"[...document.querySelectorAll('#models button')].find(b=>b.textContent==='{model}').click()"


def clean(page, server):
    assert not page.console, page.console
    strange = [url for url in page.requests if not url.startswith((server.url, "data:", "about:"))]
    assert len(page.requests) > 3 and not strange, strange


def under_traffic():
    """Rates, percentiles and sizes of a model come and move; the picture for the documentation on request."""

    async def journey(page):
        await page.open(server.url + "/")
        await page.until(f"document.querySelector('#models button') && parseFloat({cell('simple', 'requests')}) > 50")
        await page.until(f"parseFloat({cell('simple', 'p99')}) > 0 && parseFloat({cell('simple', 'p50')}) > 0")
        p50, p95, p99 = [float(await page.evaluate(cell("simple", c))) for c in ("p50", "p95", "p99")]
        assert 0 < p50 <= p95 <= p99 < 10000, (p50, p95, p99)
        assert float(await page.evaluate(cell("simple", "batch"))) >= 1
        assert "MiB" in await page.evaluate(cell("dense", "memory"))
        before = await page.evaluate("document.getElementById('models').innerText")
        await page.until(f"document.getElementById('models').innerText !== {json.dumps(before)}")
        assert float(await page.evaluate(cell("simple", "cost"))) > 0
        assert "UNAVAILABLE" in await page.evaluate("document.getElementById('models').innerText")
        assert "not ready" not in await page.evaluate("document.getElementById('state').textContent")
        await page.evaluate(choose("simple"))
        await page.until("document.querySelectorAll('#batches rect').length > 0")
        await page.until("document.querySelector('#latency polyline').getAttribute('points').split(' ').length > 3")
        words = await page.evaluate("document.querySelector('#rate svg').getAttribute('aria-label')")
        assert "requests/s, now" in words, words
        assert "requests/s" in await page.evaluate("document.getElementById('server').innerText")
        if os.environ.get("TRIREME_PAGE_PICTURE"):
            await page.evaluate(choose("minilm" if has_encoder else "simple"))
            await page.evaluate("new Promise(r=>setTimeout(r,50000))")  # lines over the last minute
            await page.evaluate("document.querySelector('#form button').click()")
            await page.until("document.getElementById('took').textContent.includes('answered')")
            await page.screenshot(os.environ["TRIREME_PAGE_PICTURE"])
        clean(page, server)

    with Server(repository, "--price-per-hour", "1.5") as server, Traffic(server):
        browse(journey)


def form():
    """Tensors as JSON and texts go in, answers and errors come out."""

    async def send(page, model, values):
        await page.evaluate(choose(model))
        await page.until(f"metadata && metadata.name === '{model}' && document.querySelector('#fields textarea')")
        for field, value in values.items():
            await page.evaluate(f"document.getElementById('{field}').value = {json.dumps(value)}")
        await page.evaluate("document.querySelector('#form button').click()")
        await page.until("document.getElementById('answer').textContent !== ''")
        return await page.evaluate("document.getElementById('answer').textContent")

    async def journey(page):
        await page.open(server.url + "/")
        await page.until("document.querySelectorAll('#models button').length >= 2")
        given = list(range(16))
        answer = await send(page, "simple", {"data0": json.dumps(given), "data1": "3"})
        assert "OUTPUT0 INT32 [1, 16]" in answer and "3, 4, 5, 6" in answer and "largest: 18 at 15" in answer, answer
        took = await page.evaluate("document.getElementById('took').textContent")
        assert took.startswith("answered in ") and took.endswith(" ms"), took
        assert "FP32 [64, 512]" in await send(page, "dense", {"data0": "random"})
        if has_encoder:
            answer = await send(page, "minilm", {"data0": "three banks of oars\nanother text"})
            assert "sentence_embedding FP32 [2, 384]" in answer, answer
        assert not page.console, page.console
        # Labels belong to their fields, and the keyboard gets to them.
        assert await page.evaluate("[...document.querySelectorAll('#fields textarea')].every(e=>e.labels.length===1)")
        answer = await send(page, "simple", {"shape0": "[1, 15]", "data0": "1"})
        assert "unexpected shape" in answer and "400" in answer, answer
        assert await page.evaluate("document.getElementById('answer').className") == "bad"
        page.console.clear()  # a browser logs the 400 that this asked for

    with Server(repository) as server:
        browse(journey)


def conversation():
    """A language model answers as its tokens come, remembers what was said, and shows its speed and its pages."""
    root = temporary()
    make_model(root / "talk", positions=4096)

    async def journey(page):
        await page.open(server.url + "/")
        await page.until("document.querySelector('#models button') !== null")
        await page.until("metadata && metadata.name === 'talk' && document.getElementById('data0')")
        for turn in (1, 2):
            await page.evaluate(f"document.getElementById('data0').value = 'Who is the king? {turn}'")
            await page.evaluate("document.getElementById('took').textContent = '';"
                                "document.querySelector('#form button').click()")
            await page.until("document.getElementById('took').textContent.includes('first token in')")
            took = await page.evaluate("document.getElementById('took').textContent")
            assert "tokens, " in took and took.endswith("/s"), took
            assert await page.evaluate("talk.length") == 2 * turn
        said = await page.evaluate("document.getElementById('answer').textContent")
        assert said.startswith("user: Who is the king? 1\nassistant: ") and "user: Who is the king? 2" in said, said
        await page.until("document.getElementById('facts').innerText.includes('tokens of answers/s')")
        assert "pages held" in await page.evaluate("document.getElementById('facts').innerText")
        clean(page, server)

    with Server(root, "--threads", "1") as server:
        browse(journey)
    shutil.rmtree(root)


def dark_and_narrow():
    """Both colour schemes differ, and at a phone's width only the table scrolls."""

    async def journey(page):
        await page.open(server.url + "/")
        await page.until("document.querySelector('#models button') !== null")
        colours = []
        for scheme in ("light", "dark"):
            await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            colours.append(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours[0] != colours[1], colours
        await page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        wide = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], wide
        clean(page, server)

    with Server(repository) as server:
        browse(journey)


def policy():
    """The page may run its own script only: injected ones and other hosts are refused, by the browser itself."""

    async def journey(page):
        await page.open(server.url + "/")
        await page.until("document.querySelector('#models button') !== null")
        await page.evaluate("(()=>{const s=document.createElement('script');s.textContent='window.hacked=1';"
                            "document.body.append(s);document.body.insertAdjacentHTML('beforeend',"
                            "'<img src=x onerror=\"window.hacked=1\">')})()")
        refused = await page.evaluate("fetch('http://127.0.0.1:9/').then(()=>false,()=>true)")
        assert refused and not await page.evaluate("window.hacked"), page.console
        assert any("Content Security Policy" in line for line in page.console), page.console

    with Server(repository) as server:
        first, second = [urllib.request.urlopen(server.url + "/", timeout=10) for _ in range(2)]
        rule, other = first.headers["Content-Security-Policy"], second.headers["Content-Security-Policy"]
        assert "default-src 'none'" in rule and "unsafe" not in rule and rule != other, (rule, other)
        text = first.read().decode()
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
        assert len(text) < 40_000
        browse(journey)


def hostile_names():
    """A model's name and reason are text, whatever they hold."""
    name = "x<img src=q onerror=alert(1)>"
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    shutil.copy(repository / "simple" / "1" / "model.onnx", folder / "model.onnx")

    async def journey(page):
        await page.open(server.url + "/")
        await page.until("document.querySelectorAll('#models button').length >= 3")
        assert name in await page.evaluate("document.getElementById('models').textContent")
        assert await page.evaluate("document.querySelectorAll('#models img').length") == 0
        clean(page, server)

    try:
        with Server(repository) as server:
            browse(journey)
    finally:
        shutil.rmtree(repository / name)


try:
    run_cases([(case.__name__, case) for case in (under_traffic, form, conversation, dark_and_narrow,
                                                             policy, hostile_names)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
