"""Dialogs on a phone: nothing in them is wider than they are, in either language."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.web.chromium import CHROMIUM

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
# What stands out of the dialog that is open, or is cut off in it.
OUTSIDE = """() => {
    const dialog = document.querySelector('dialog[open]')
    const room = dialog.getBoundingClientRect()
    const parts = [...dialog.querySelectorAll('*')].filter((part) => part.getClientRects().length)
    const isOut = (part) => {
        const { left, right } = part.getBoundingClientRect()
        return left < room.left || right > room.right
    }
    const isCut = (part) => part.matches('button, label, h2, p') && part.scrollWidth > part.clientWidth + 1
    return parts.filter((part) => isOut(part) || isCut(part)).map((part) => part.outerHTML.slice(0, 200))
}"""


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("width", [320, 390])
async def test_nothing_in_a_dialog_is_wider_than_it(browser: Browser, width: int, language: str) -> None:
    async with serving(FakeEngine()) as served:
        page = await browser.new_page(viewport={"width": width, "height": 640}, locale=language)
        await page.goto(served.url)
        await page.locator("#prompt").fill("A question whose words are many, and of which a title is made")
        await page.locator("#send:enabled").click()
        await page.locator(".assistant:not([aria-busy]) .rate").wait_for()
        await page.locator("#chats-button").click()
        await page.locator("#chats-list .chat").wait_for()
        assert await page.evaluate(OUTSIDE) == []
        name = page.locator("#chats-list .name")
        assert (await name.bounding_box() or {"width": 0})["width"] > 70
        await page.locator("#chats-list .quiet").first.click()
        await page.locator("#chats-list input").wait_for()
        assert await page.evaluate(OUTSIDE) == []
        await page.keyboard.press("Escape")
        await page.keyboard.press("Escape")
        await page.locator("#settings-button").click()
        assert await page.evaluate(OUTSIDE) == []
        await page.locator("#setting-temperature").fill("much")
        await page.locator("#setting-temperature-wrong").wait_for()
        assert await page.evaluate(OUTSIDE) == []
        await page.close()
