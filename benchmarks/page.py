#!/usr/bin/env python3
"""What the chat page costs the browser: first load, first paint, frames of long conversations and answers.

    page.py [--messages N] [--tokens N] [--repeat R] [--json FILE]

Headless Chromium shows the page of a server in this process that has no model; the websocket's events are made up by
this script, so that the page alone is measured: a conversation of N messages that is scrolled through, and an answer
of N tokens, each an event, whose last thousand come at 100 a second, those before as fast as the page takes them.
Frames are the times between callbacks of requestAnimationFrame, without a screen to wait for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from command_line import out_file, run_script
from playwright.async_api import async_playwright
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from unicorn_async.cli.options import count
from unicorn_async.resources import resource_dir
from unicorn_async.server.page import page_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page, WebSocketRoute
    from starlette.requests import Request

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SLOW_TOKENS, SLOW_PER_SECOND = 1000, 100.0  # at the end of an answer
PARAGRAPH = (
    "A paragraph with **stress**, `code` and a [link](https://example.org), long enough to wrap in the window once or "
    "twice, as answers have them.\n\n- a point\n- another one\n\n"
    "```python\nfor index in range(10):\n    print(index)\n```\n\n"
)
FRAMES = """async (work) => {
    const times = []
    let isDone = false
    const frame = (time) => { times.push(time); if (!isDone) requestAnimationFrame(frame) }
    requestAnimationFrame(frame)
    await new Promise((resolve) => { globalThis.endFrames = resolve; eval(work) })
    isDone = true
    return times.slice(1).map((time, index) => time - times[index])
}"""


async def health(request: Request) -> JSONResponse:
    """Answer as a server with a model does."""
    return JSONResponse({"status": "ready", "can_switch": False, "max_context": 131072, "device": None})


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """Serve the built page."""
    app = Starlette(routes=[Route("/health", health), *page_routes(resource_dir("web") / "built")])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


class MadeUpServer:
    """The far end of the page's websocket."""

    def __init__(self) -> None:
        self.socket: WebSocketRoute | None = None
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def connected(self, socket: WebSocketRoute) -> None:
        """Take the page's connection."""
        self.socket = socket
        socket.on_message(self._received)
        socket.send(json.dumps({"type": "unicorn.model", "model": "made-up", "status": "ready", "error": None}))

    def _received(self, message: str | bytes) -> None:
        event = json.loads(message)
        if event["type"] == "response.create":
            self.asked.put_nowait(event)

    async def answer(self, tokens: int, slow: asyncio.Event) -> None:
        """Answer a question with so many tokens; `slow` is set before those that come slowly, and waited for there."""
        assert self.socket is not None
        stream = (await self.asked.get())["stream_id"]
        response = {"id": "resp_1", "model": "made-up", "status": "completed", "usage": None}
        pieces = [PARAGRAPH[at : at + 4] for at in range(0, len(PARAGRAPH), 4)]
        loop = asyncio.get_running_loop()
        self.socket.send(
            json.dumps({"type": "response.created", "stream_id": stream, "sequence_number": 0, "response": response})
        )
        num_fast = max(0, tokens - SLOW_TOKENS)
        for number in range(tokens):
            if number == num_fast:
                slow.set()
                await asyncio.sleep(1)
                started = loop.time()
            delta = {"delta": pieces[number % len(pieces)], "sequence_number": number + 1}
            self.socket.send(json.dumps({"type": "response.output_text.delta", "stream_id": stream, **delta}))
            if number >= num_fast:
                due_s = started + (number - num_fast + 1) / SLOW_PER_SECOND
                await asyncio.sleep(max(0.0, due_s - loop.time()))
            elif number % 50 == 0:
                await asyncio.sleep(0)
        self.socket.send(json.dumps({"type": "response.completed", "stream_id": stream, "response": response}))


def conversation(messages: int) -> str:
    """Return a file of conversations that the page reads."""
    made, parent = [], None
    for index in range(messages):
        is_user = index % 2 == 0
        text = f"Question {index}?" if is_user else PARAGRAPH * 3
        made.append(
            {
                "id": str(index),
                "parent": parent,
                "role": "user" if is_user else "assistant",
                "text": text,
                "state": "done",
                "created": index,
            }
        )
        parent = str(index)
    chat = {"title": "long", "created": 0, "changed": 0, "draft": "", "leaf": parent, "start": None, "messages": made}
    return json.dumps({"format": "unicorn-chat", "version": 1, "conversations": [chat]})


async def first_load(browser: Browser, url: str) -> dict[str, float]:
    """Load the page in an empty browser; bytes as they went over the wire, ms since the navigation began."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.route_web_socket("**/v1/responses**", MadeUpServer().connected)
    await page.goto(url)
    await page.locator("#prompt").wait_for()
    await page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    found: dict[str, float] = await page.evaluate(
        """() => ({
            page_ms: performance.now(),
            bytes: [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
                .reduce((sum, entry) => sum + (entry.name.endsWith('/health') ? 0 : entry.encodedBodySize), 0),
            first_paint_ms: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN,
        })"""
    )
    await context.close()
    return found


def spread(times: list[float]) -> dict[str, float]:
    """Sum frames up, in ms."""
    ordered = sorted(times)
    return {
        "frames": len(ordered),
        "median_ms": statistics.median(ordered),
        "p95_ms": ordered[int(len(ordered) * 0.95)],
        "longest_ms": ordered[-1],
    }


async def scrolled(page: Page, messages: int) -> dict[str, float]:
    """Read a conversation from a file, and scroll through it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chat.json"
        file.write_text(conversation(messages), encoding="utf-8")
        await page.locator("#chats-button").click()
        await page.locator("#chats-import").set_input_files(file)
        await page.locator("#chats-list .name", has_text="long").first.click()
    await page.locator(".assistant").nth(messages // 2 - 1).wait_for()
    work = """
        const scroller = document.getElementById('scroller'); scroller.scrollTop = 0
        const step = () => {
            scroller.scrollTop += 150
            if (scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 1) endFrames()
            else requestAnimationFrame(step)
        }
        step()"""
    return spread(await page.evaluate(FRAMES.replace("eval(work)", work), ""))


async def streamed(page: Page, server: MadeUpServer, tokens: int) -> dict[str, float]:
    """Let an answer come, and watch the frames of its last part."""
    await page.locator("#new-chat").click()
    work = """
        const timer = setInterval(() => {
            if (document.querySelector('.assistant:not([aria-busy])')) { clearInterval(timer); endFrames() }
        }, 50)"""
    await page.get_by_label("Your message").fill("Go on")
    await page.locator("#send:enabled").wait_for()
    await page.keyboard.press("Enter")
    slow = asyncio.Event()
    answering = asyncio.create_task(server.answer(tokens, slow))
    await slow.wait()
    frames = await page.evaluate(FRAMES.replace("eval(work)", work), "")
    await answering
    return spread(frames)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all of it."""
    found: dict[str, Any] = {"first_load": []}
    async with served() as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        found["browser"] = browser.version
        for _ in range(options.repeat):
            found["first_load"].append(await first_load(browser, url))
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        page, server = await context.new_page(), MadeUpServer()
        await page.route_web_socket("**/v1/responses**", server.connected)
        await page.goto(url)
        await page.locator("#prompt").wait_for()
        found["scrolled"] = await scrolled(page, options.messages)
        found["streamed"] = await streamed(page, server, options.tokens)
        await browser.close()
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="What the chat page costs the browser.")
    parser.add_argument("--messages", type=count, default=200, metavar="N")
    parser.add_argument("--tokens", type=count, default=32_000, metavar="N")
    parser.add_argument("--repeat", type=count, default=5, metavar="R", help="first loads")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    paints = [load["first_paint_ms"] for load in found["first_load"]]
    print(f"Chromium {found['browser']}, headless")
    print(
        f"first load: {found['first_load'][0]['bytes']:.0f} bytes; first paint {statistics.median(paints):.0f} ms",
        end="",
    )
    print(f" ({min(paints):.0f} to {max(paints):.0f})")
    names = {
        "scrolled": f"scrolling through {options.messages} messages",
        "streamed": f"the last {min(options.tokens, SLOW_TOKENS)} of {options.tokens} tokens",
    }
    for key, name in names.items():
        one = found[key]
        print(
            f"{name}: {one['frames']} frames, median {one['median_ms']:.1f} ms, 95% {one['p95_ms']:.1f} ms, "
            f"longest {one['longest_ms']:.1f} ms"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    run_script(main)
