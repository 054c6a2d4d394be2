"""A headless Chromium for tests of pages, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.eventually import eventually
from tests.programs import program

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class BrowserPage:
    """One page: its scripts are run in it, and their results come back as values."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:  # events come between the answers
            message = await self._socket.receive_json(timeout=20)
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result

    async def run(self, script: str) -> Any:
        answer = await self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until the script returns something that is true."""
        return await eventually(lambda: self.run(script), within=20, what=script)

    async def resize(self, width: int, height: int, *, phone: bool) -> None:
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def click(self, selector: str) -> None:
        """Bring an element into view, wait until that is drawn, and press the mouse in its middle."""
        x, y = await self.run(
            f"""(async () => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "nearest"}});
              for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def screenshot(self, path: Path) -> None:
        answer = await self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def browser_page(url: str, profile: Path, *, width: int, height: int, phone: bool) -> AsyncIterator[BrowserPage]:
    """A new browser with a profile of its own, showing one page."""
    process = await asyncio.create_subprocess_exec(
        program(*NAMES),
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    port_file = profile / "DevToolsActivePort"
    try:
        lines = await eventually(
            lambda: port_file.read_text().split() if port_file.exists() else None,
            within=30,
            what="the port of the browser",
        )
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as response:
                target = next(each for each in await response.json(content_type=None) if each["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = BrowserPage(socket)
                await page.resize(width, height, phone=phone)
                await page.command("Page.navigate", url=url)
                yield page
                await page.command("Browser.close")
        await asyncio.wait_for(process.wait(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
