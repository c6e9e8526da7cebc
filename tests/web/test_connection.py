"""A server that is gone from one moment to the next, and comes back."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lasting_port import lasting_port
from tests.web.chromium import CHROMIUM, ask, shows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

PROGRAM = """
import asyncio, sys
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import ServerOptions, serve

class Pause(asyncio.Event):
    async def wait(self):
        await asyncio.sleep(0.1)

async def main():
    engine = FakeEngine()
    if sys.argv[2] == "paced":
        engine.hold[1] = Pause()
    if sys.argv[2] == "held":
        engine.hold[1] = asyncio.Event()
    if sys.argv[2] == "loading":
        engine.loaded.clear()
    options = ServerOptions(api_key="sesame" if sys.argv[2] == "locked" else None)
    await serve(engine, port=int(sys.argv[1]), options=options, on_ready=lambda url: print(url, flush=True))

asyncio.run(main())
"""


@asynccontextmanager
async def server_process(port: int, how: str) -> AsyncIterator[str]:
    """Run a server in a process of its own, which is killed at the end of the block; gives its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(port), how, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.communicate()


async def test_a_server_that_is_killed_is_told_and_found_again(browser: Browser) -> None:
    page, port = await browser.new_page(), lasting_port()
    async with server_process(port, "held") as url:
        await page.goto(url)
        await ask(page, "Hi")
        await shows(page, ".assistant .body", "Hello")
    await shows(page, ".note", "goes on once it is back")
    await shows(page, "#status", "Connecting")
    assert await page.locator(".assistant .body").inner_text() == "Hello"
    assert await page.locator("#send").count() == 0
    await shows(page, "#device", "connecting")
    assert await page.locator("#software").count() == 0
    assert await page.locator("#speed").inner_text() == ""
    assert await page.locator("#load").count() == 0
    async with server_process(port, "free"):
        await shows(page, ".note.problem", "The connection was lost")  # the answer went with the process
        await ask(page, "Again")
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        assert await page.locator("#status").inner_text() == ""
    await page.close()


async def test_a_server_that_hangs_is_told_and_trusted_again_once_it_answers(browser: Browser) -> None:
    page = await browser.new_page()
    await page.clock.install()
    async with server_process(0, "paced") as url:
        await page.goto(url)
        await shows(page, "#device", "Fake GPU")
        await ask(page, "Hi")
        await shows(page, "#speed", "tokens/s")
        await page.route("**/health", lambda route: route.abort())
        await page.clock.fast_forward(11_000)
        await shows(page, "#status", "The server does not answer")
        await shows(page, "#device", "the server does not answer")
        assert await page.locator("#model").inner_text() == "unicorn_async"
        assert await page.locator("#speed").inner_text() == ""
        await page.unroute("**/health")
        await page.clock.fast_forward(11_000)
        await shows(page, "#device", "Fake GPU")
        await shows(page, "#model", "fake-model")
        assert await page.locator("#status").inner_text() == ""
    await page.close()


async def test_a_question_that_waited_for_a_model_is_not_said_to_once_the_server_has_gone(browser: Browser) -> None:
    page = await browser.new_page()
    async with server_process(0, "loading") as url:
        await page.goto(url)
        await ask(page, "Hi")
        await shows(page, ".assistant .waiting", "as soon as the model is loaded")
    await shows(page, ".note", "goes on once it is back")
    assert await page.locator(".assistant .waiting").inner_text() == ""
    await page.close()


async def test_a_server_that_wants_a_key_no_more_is_found_by_itself(browser: Browser) -> None:
    page, port = await browser.new_page(), lasting_port()
    async with server_process(port, "locked") as url:
        await page.goto(url)
        await page.locator("#key-dialog").wait_for()
        await page.keyboard.press("Escape")
        await shows(page, "#status", "wants an API key")
    async with server_process(port, "free"):
        await page.locator("#device", has_text="Fake GPU").wait_for(timeout=120_000)
        await ask(page, "Hi")
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
    await page.close()
