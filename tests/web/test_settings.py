"""What a conversation asks of the model beside its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.web.chromium import CHROMIUM, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.server.fake_engine import FakeEngine

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
BUTTON = "Settings of this conversation"


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, engine: FakeEngine) -> AsyncIterator[Page]:
    async with serving(engine) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        yield page
        await page.close()


async def answered(page: Page, number: int = 1) -> None:
    await page.locator(".assistant:not([aria-busy]) .body").nth(number - 1).wait_for()


async def test_settings_go_with_every_question_and_stay(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name=BUTTON).click()
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Temperature").fill("0,7")
    await page.get_by_label("Most tokens").fill("2")
    await page.get_by_role("button", name="Save").click()
    await page.get_by_role("button", name="some are set").wait_for()
    await ask(page, "Hi")
    await answered(page)
    await page.reload()
    await ask(page, "And?")
    await answered(page, 2)
    for call in engine.calls:
        assert (call.sampling.temperature, call.sampling.max_tokens) == (0.7, 2)
    said = [(message.role, message.content) for message in engine.fake_tokenizer.conversations[-1]]
    assert said == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello there,"), ("user", "And?")]
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Again")
    await answered(page)
    assert engine.calls[-1].sampling.temperature == 0.0
    assert [message.role for message in engine.fake_tokenizer.conversations[-1]] == ["user"]


async def test_a_value_that_is_none_is_told_and_not_saved(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name=BUTTON).click()
    await page.get_by_label("Top p").fill("1.5")
    message = page.locator("#setting-top_p-wrong")
    await message.wait_for()
    assert await message.inner_text() == "Expected a number, more than 0, at most 1"
    assert await page.get_by_role("button", name="Save").is_disabled()
    await page.get_by_label("Top p").press("Enter")
    assert await page.locator("#settings-dialog").count() == 1
    await page.get_by_role("button", name="Reset").click()
    await page.get_by_role("button", name="Save").click()
    await ask(page, "Hi")
    await answered(page)
    assert engine.calls[0].sampling.top_p == 1.0


async def test_settings_that_were_changed_are_left_by_escape(page: Page) -> None:
    await page.get_by_role("button", name=BUTTON).click()
    await page.get_by_label("Seed").fill("7")
    await page.keyboard.press("Escape")
    await page.locator("#settings-dialog").wait_for(state="detached")
    await page.get_by_role("button", name=BUTTON).click()
    assert await page.get_by_label("Seed").input_value() == ""
