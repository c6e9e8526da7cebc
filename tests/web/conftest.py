"""The browser that the page is shown in, one for all tests, and a server with a made-up engine, one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.web.chromium import CHROMIUM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from tests.server.conftest import Served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """To start one takes longer than most tests."""
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
        )
        browser.on("context", lambda context: context.set_default_timeout(120_000))
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest_asyncio.fixture(loop_scope="session")
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with serving(engine) as found:
        yield found
