"""The first command, all the way: `unicorn demo`, the page in a headless Chromium, a question and its answer."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import SOFTWARE_DRIVERS

if TYPE_CHECKING:
    from tests.cli.conftest import Demo

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed"),
]


async def test_the_demos_page_answers_a_sum(demo: Demo) -> None:
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    address = await demo.address()
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
        )
        page = await browser.new_page()
        page.set_default_timeout(120_000)
        await page.goto(address)
        await page.locator("#software", has_text="SOFTWARE").wait_for()
        await page.get_by_label("Your message").fill("What is 17 + 25?")
        await page.locator("#send:enabled").wait_for()
        await page.keyboard.press("Enter")
        await page.locator(".assistant:not([aria-busy]) .body", has_text="42").wait_for(timeout=120_000)
        await browser.close()
