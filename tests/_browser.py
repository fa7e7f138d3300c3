# A real browser, driven over its DevTools protocol by a WebSocket: no driver, no test framework.
import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import aiohttp

from _serving import Skip


class Page:
    """One tab. What it logs, and where it sends requests, is kept for the test to judge."""

    def __init__(self, socket):
        self._socket, self._numbers, self._waiting = socket, itertools.count(1), {}
        self.console, self.requests = [], []
        self._reader = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._waiting.pop(event["id"]).set_result(event)
                continue
            method, given = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                self.console.append(str(given["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
                self.console.append(str(given["args"]))
            elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                self.console.append(str(given["entry"]))
            elif method == "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])

    async def call(self, method, **given):
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": given})
        answer = await asyncio.wait_for(self._waiting[number], 60)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    async def open(self, url):
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression):
        """The value of a JavaScript expression; promises are awaited, exceptions are failures."""
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression, limit_s=60):
        """Waits until an expression is true."""
        for _ in range(int(limit_s / 0.1)):
            if await self.evaluate(f"!!({expression})"):
                return
            await asyncio.sleep(0.1)
        text = await self.evaluate("document.body.innerText")
        raise AssertionError(f"never true: {expression}; the page says {text}")

    async def screenshot(self, path):
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))


async def _browse(journey, size):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        raise Skip("chromium is not installed (./dev setup strangers)")
    with tempfile.TemporaryDirectory(prefix="trireme-browser-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             "--remote-debugging-port=0", f"--user-data-dir={home}", f"--window-size={size}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port_file = Path(home) / "DevToolsActivePort"
            for _ in range(600):
                if port_file.exists() and len(port_file.read_text().splitlines()) == 2:
                    break
                assert process.poll() is None, f"chromium ended with {process.returncode}"
                await asyncio.sleep(0.1)
            port = port_file.read_text().splitlines()[0]
            tabs = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30).read())
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with aiohttp.ClientSession() as session:
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    await journey(Page(socket))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def browse(journey, size="1280,1180"):
    """Starts a browser and gives its one tab to the coroutine `journey`."""
    asyncio.run(_browse(journey, size))
