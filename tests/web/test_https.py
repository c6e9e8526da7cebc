"""The chat page over https: it asks over wss, and nothing of it goes another way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tests.server
from tests.server.conftest import serving
from tests.web.chromium import CHROMIUM, ask, shows
from unicorn_async.server import ServerOptions
from unicorn_async.server.tls import tls_context

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.server.fake_engine import FakeEngine

FILES = Path(tests.server.__file__).parent / "tls"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


async def test_the_page_asks_and_is_answered_over_wss(browser: Browser, engine: FakeEngine) -> None:
    options = ServerOptions(tls=tls_context(FILES / "cert.pem", FILES / "key.pem"))
    async with (
        serving(engine, options) as served,
        await browser.new_context(ignore_https_errors=True) as context,
    ):
        page = await context.new_page()
        problems: list[str] = []
        asked: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.on("websocket", lambda socket: asked.append(socket.url))
        await page.goto(served.url)
        await ask(page, "What is 17 + 25?")
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        await page.reload()  # the answer is kept, and the connection made anew
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        await shows(page, "#model", "fake-model")
        place = served.url.removeprefix("https://")
        assert f"wss://{place}/v1/responses" in [url.partition("?")[0] for url in asked]
        assert [url for url in asked if not url.startswith((f"https://{place}/", f"wss://{place}/"))] == []
        assert problems == []
