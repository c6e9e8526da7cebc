"""A headless Chromium, and what a person does in it."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re

    from playwright.async_api import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.locator("#send:enabled").wait_for()
    await page.keyboard.press("Enter")


async def shows(page: Page, selector: str, text: str | re.Pattern[str]) -> None:
    """Wait until an element with this text is there to see."""
    await page.locator(selector, has_text=text).first.wait_for(timeout=120_000)


async def becomes(page: Page, condition: str) -> None:
    """Wait until an expression is true in the page."""
    look = f"const look = () => {{ if ({condition}) done(); else requestAnimationFrame(look) }}; look()"
    async with asyncio.timeout(120):
        await page.evaluate(f"new Promise((done) => {{ {look} }})")
