"""axe finds nothing wrong in any state of the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.server.test_step_watch import note_step
from tests.web.axe import needs_axe, violations
from tests.web.chromium import CHROMIUM, ask, shows
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import DeviceLostError
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

pytestmark = [
    needs_axe,
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
TEXT = (
    "<think>Hm.</think># Head\n\nA [link](https://example.org), `code`, *stress*.\n\n- a list\n\n| a | b |\n|:--|--:|\n"
    "| 1 | 2 |\n\n```python\nimport os  # 'it'\nx = 1\n```\n\n$$x = \\frac{1}{2}$$\n\n> quoted"
)
SCHEMES = ["light", "dark"]


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.script = [Token(1, TEXT), Token(2, "", finish_reason=FinishReason.STOP)]
    return engine


@pytest_asyncio.fixture(loop_scope="session", params=SCHEMES)
async def page(request: pytest.FixtureRequest, browser: Browser, engine: FakeEngine) -> AsyncIterator[Page]:
    async with serving(engine) as served:
        page = await browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=request.param)
        await page.goto(served.url)
        await shows(page, "#device", "Fake GPU")
        yield page
        await page.close()


async def is_fine(page: Page, state: str) -> None:
    found = await violations(page)
    assert not found, f"{state}:\n" + "\n".join(found)


async def answered(page: Page, number: int = 1) -> None:
    await page.locator(".assistant:not([aria-busy]) > .body").nth(number - 1).wait_for()


async def test_a_conversation_and_all_that_is_in_it(page: Page, engine: FakeEngine) -> None:
    await is_fine(page, "welcome")
    await ask(page, "Hi")
    await answered(page)
    await page.locator(".code-keyword").wait_for()
    await page.locator(".formula mfrac").wait_for()
    await page.locator(".reasoning summary").click()
    await is_fine(page, "an answer")
    await page.get_by_role("button", name="Edit").click()
    await is_fine(page, "an editor")
    await page.get_by_role("button", name="Cancel").click()
    engine.hold[1] = asyncio.Event()
    await ask(page, "More")
    await page.locator(".assistant[aria-busy] .body", has_text="quoted").wait_for()
    await is_fine(page, "an answer under way")
    await page.get_by_role("button", name="Stop").click()
    await shows(page, ".note", "Stopped")
    engine.hold.clear()
    engine.fail[1] = DeviceLostError("gone")
    await ask(page, "And?")
    await shows(page, ".note.problem", "gone")
    await page.get_by_role("button", name="New chat").click()
    await page.locator("#notice").wait_for()
    await is_fine(page, "a notice")


async def test_dialogs_and_the_inside_view(page: Page, engine: FakeEngine) -> None:
    await ask(page, "Hi")
    await answered(page)
    await page.get_by_role("button", name="Settings of this").click()
    await page.get_by_label("Top p").fill("7")
    await is_fine(page, "settings")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Chats").click()
    await page.get_by_role("button", name="Rename Hi").click()
    await is_fine(page, "conversations")
    await page.keyboard.press("Escape")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Look inside").click()
    note_step(engine, 1, "a", "b")
    await page.locator(".inside-table summary").click()
    await page.locator(".inside-table tbody tr").first.wait_for()
    await page.locator("#inside-pause").click()
    await is_fine(page, "the inside view")


async def test_a_load_and_a_key(browser: Browser, engine: FakeEngine) -> None:
    engine.loaded.clear()
    engine.bytes_total, engine.bytes_loaded = 100_000_000, 20_000_000
    async with serving(engine, ServerOptions(api_key="sesame")) as served:
        page = await browser.new_page(viewport={"width": 390, "height": 844})
        await page.goto(served.url)
        await page.locator("#key-dialog").wait_for()
        await is_fine(page, "the key")
        await page.get_by_label("API key", exact=True).fill("sesame")
        await page.keyboard.press("Enter")
        await shows(page, "#load-text", "Loading")
        await ask(page, "Hi")
        await page.locator(".waiting").wait_for()
        await is_fine(page, "a load")
        await page.close()
