"""The page by keyboard: where the focus is after what had it is gone, and what Escape ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.web.chromium import CHROMIUM, ask, becomes, shows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.server.fake_engine import FakeEngine

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
COMPOSED = """(how) => document.activeElement.dispatchEvent(
    new KeyboardEvent('keydown', { key: 'Escape', bubbles: true, cancelable: true, ...how }))"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, engine: FakeEngine) -> AsyncIterator[Page]:
    async with serving(engine) as served:
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(served.url)
        await shows(page, "#device", "Fake GPU")
        yield page
        await page.close()
        assert problems == []


async def answered(page: Page, text: str) -> None:
    """Ask, and wait for the answer's end."""
    count = await page.locator(".assistant").count()
    await ask(page, text)
    await page.locator(".assistant:not([aria-busy]) .rate").nth(count).wait_for()


async def press(page: Page, name: str, *, number: int = 0) -> None:
    """Press a button by keyboard."""
    await page.get_by_role("button", name=name).nth(number).focus()
    await page.keyboard.press("Enter")


async def focused(page: Page, name: str) -> None:
    """Wait until an element has the focus: by its id, its accessible name or its text."""
    this = "document.activeElement"
    await becomes(page, f"[{this}.id, {this}.ariaLabel, {this}.textContent].includes({name!r})")


@pytest.mark.parametrize("how", [{"isComposing": True}, {"keyCode": 229}])
async def test_escape_in_a_composition_is_the_input_methods(
    page: Page, engine: FakeEngine, how: dict[str, object]
) -> None:
    engine.hold[1] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant[aria-busy] .body", "Hello")
    await page.evaluate(COMPOSED, how)
    await page.get_by_role("button", name="Stop").wait_for()
    assert not await page.locator("#stop").is_disabled()
    await page.keyboard.press("Escape")
    await shows(page, ".note", "Stopped")
    await press(page, "Edit")
    await page.evaluate(COMPOSED, how)
    assert await page.locator(".editor").count() == 1
    await page.keyboard.press("Escape")
    await page.locator(".editor").wait_for(state="detached")


async def test_who_stops_deletes_or_asks_again_goes_on_writing(page: Page, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant[aria-busy] .body", "Hello")
    await press(page, "Stop")
    await focused(page, "prompt")
    engine.hold.clear()
    await press(page, "Ask again")
    await focused(page, "prompt")
    await page.locator(".assistant:not([aria-busy]) .rate").wait_for()
    await press(page, "Delete")
    await focused(page, "prompt")
    await press(page, "Undo")
    await focused(page, "prompt")


async def test_an_edit_ends_where_it_began_and_versions_change_under_the_keyboard(page: Page) -> None:
    await answered(page, "First")
    await press(page, "Edit")
    await focused(page, "The edited message")
    await page.keyboard.press("Escape")
    await focused(page, "Edit")
    await page.keyboard.press("Enter")
    await focused(page, "The edited message")
    await page.keyboard.type(" and more")
    await page.locator(".editor").get_by_role("button", name="Send").click()
    await shows(page, ".user .body", "and more")
    await focused(page, "Edit")
    await press(page, "Previous version")
    await shows(page, ".versions", "1 of 2")
    await focused(page, "Previous version")
    await page.keyboard.press("Enter")
    await shows(page, ".versions", "1 of 2")
    await focused(page, "Previous version")


async def test_an_editor_is_that_of_its_conversation(page: Page) -> None:
    await answered(page, "One")
    await page.get_by_role("button", name="New chat").click()
    await answered(page, "Two")
    await press(page, "Edit")
    await focused(page, "The edited message")
    await page.keyboard.type(" and more")
    await page.get_by_role("button", name="Chats").click()
    await page.locator("#chats-list .name", has_text="One").click()
    await shows(page, ".user .body", "One")
    assert await page.locator(".editor").count() == 0


async def test_conversations_are_renamed_and_deleted_under_the_keyboard(page: Page) -> None:
    for name in ("One", "Two", "Three"):
        await page.get_by_role("button", name="New chat").click()
        await answered(page, name)
    await press(page, "Chats")
    await press(page, "Rename Two")
    await focused(page, "New title")
    await page.evaluate(COMPOSED, {"isComposing": True})
    await focused(page, "New title")
    await page.keyboard.press("Escape")
    await focused(page, "Rename Two")
    await page.keyboard.press("Enter")
    await focused(page, "New title")
    await page.keyboard.press("End")
    await page.keyboard.type(" more")
    await page.keyboard.press("Enter")
    await focused(page, "Rename Two more")
    await press(page, "Delete Two more")
    await focused(page, "One")
    await press(page, "Delete One")
    await focused(page, "Three")
    await press(page, "Delete Three")
    await focused(page, "chats-search")
    await page.keyboard.press("Escape")
    await focused(page, "chats-button")


async def test_escape_closes_the_inside_view_and_the_answer_goes_on(page: Page, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant[aria-busy] .body", "Hello")
    await press(page, "Look inside")
    await focused(page, "inside-title")
    await page.keyboard.press("Escape")
    await page.locator("#inside").wait_for(state="detached")
    await focused(page, "inside-button")
    assert await page.locator("#stop:enabled").count() == 1
    engine.hold[1].set()
    await page.locator(".assistant:not([aria-busy]) .rate").wait_for()
    await page.keyboard.press("Enter")
    await page.locator("#inside").get_by_role("button", name="Close").click()
    await focused(page, "inside-button")
    await page.keyboard.press("Enter")
    await page.locator("#prompt").focus()
    await page.keyboard.press("Escape")
    await page.locator("#inside").wait_for(state="detached")
    await focused(page, "prompt")
