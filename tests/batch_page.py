# The page of a batch worker's port in a real browser: numbers that move while the job runs, and its end.
# tier: all
# timeout: 120
import json
import os
import shutil
import signal
import socket
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from _batch import Job
from _browser import browse
from _serving import run_cases

scratch = Path(tempfile.mkdtemp(prefix="trireme-batch-page-"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fact(name):
    return (f"[...document.querySelectorAll('#facts dt')].find(d=>d.textContent==='{name}')"
            ".nextElementSibling.textContent")


def the_page():
    """Progress, rate, stages, failed rows, workers and goals come and move; nothing is loaded from elsewhere."""
    job = Job(scratch / "page", rows=(8000,), slow=100, chunk_rows=100, cost_per_hour=3.6, deadline="10h")
    lines = (job.directory / "in0.jsonl").read_text(encoding="utf-8").splitlines()
    lines[5] = '{"id": "<img src=x onerror=alert(1)>", "x": [1]}'
    (job.directory / "in0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = job.start("--metrics-port", port)
    job.wait_for(lambda: job.some_are_done(2), process)

    async def journey(page):
        await page.open(url + "/")
        await page.until("document.getElementById('done') && document.getElementById('done').value > 0")
        await page.until(f"{fact('rows/s')} !== '0'")
        before = await page.evaluate(fact("rows"))
        await page.until(f"{fact('rows')} !== {json.dumps(before)}")
        assert " of 8,000" in before, before
        assert await page.evaluate(fact("failed rows")) == "1"
        assert "errors" in await page.evaluate(fact("which rows failed"))
        assert await page.evaluate("document.querySelectorAll('#stages meter').length") == 6
        assert "the model computes" in await page.evaluate("document.getElementById('stages').innerText")
        assert "Slowest: " in await page.evaluate("document.getElementById('slowest').textContent")
        assert await page.evaluate("document.querySelectorAll('#workers tr').length") == 1
        assert "deadline" in await page.evaluate("document.getElementById('goal').textContent")
        await page.until("document.querySelector('#rate polyline').getAttribute('points').split(' ').length > 2")
        assert "end in" in await page.evaluate("document.getElementById('state').textContent")
        if os.environ.get("TRIREME_PAGE_PICTURE"):
            await page.screenshot(os.environ["TRIREME_PAGE_PICTURE"])
        assert not page.console, page.console
        strange = [address for address in page.requests if not address.startswith((url, "data:", "about:"))]
        assert len(page.requests) > 3 and not strange, strange
        process.send_signal(signal.SIGKILL)
        process.wait()
        await page.until("document.getElementById('state').textContent.includes('does not answer')")
        assert " of 8,000" in await page.evaluate(fact("rows")), "what was known last stays"

    browse(journey)


def what_else_the_port_says():
    job = Job(scratch / "port", rows=(4000,), slow=100, chunk_rows=100)
    port = free_port()
    process = job.start("--metrics-port", port)
    job.wait_for(lambda: job.some_are_done(2), process)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=30) as answer:
        status = json.loads(answer.read())
    assert status["chunks"] == 40 and status["model"] == str(job.model) and len(status["stages"]) == 6, status
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=30)
        raise AssertionError("a path that is not there was answered")
    except urllib.error.HTTPError as refusal:
        assert refusal.code == 404 and b"/status.json" in refusal.read()
    process.terminate()
    process.communicate(timeout=60)


try:
    run_cases([(case.__name__, case) for case in (the_page, what_else_the_port_says)])
finally:
    shutil.rmtree(scratch, ignore_errors=True)
