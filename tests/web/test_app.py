"""The page in another language, and as an app."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.web.chromium import CHROMIUM, shows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from tests.server.conftest import Served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest_asyncio.fixture(loop_scope="session")
async def served() -> AsyncIterator[Served]:
    async with serving(FakeEngine()) as found:
        yield found


async def test_the_page_speaks_german_to_who_does_and_english_on_request(browser: Browser, served: Served) -> None:
    context = await browser.new_context(locale="de-AT")
    page = await context.new_page()
    await page.goto(served.url)
    await shows(page, "h2", "Was möchtest du fragen?")
    assert await page.evaluate("document.documentElement.lang") == "de"
    await page.get_by_label("Deine Nachricht").fill("Hallo")
    await page.get_by_role("button", name="Senden").click()
    await shows(page, ".assistant .rate", re.compile(r"das erste nach \d+,\d\d s"))
    await page.get_by_role("button", name="Chats").click()
    await page.get_by_label("Sprache dieser Seite").select_option("en")
    await page.get_by_label("Your message").wait_for()
    await page.reload()
    await page.get_by_role("button", name="New chat").wait_for()
    assert await page.evaluate("document.documentElement.lang") == "en"
    await shows(page, ".assistant .rate", re.compile(r"first after \d+\.\d\d s"))
    await context.close()


async def test_another_language_is_answered_in_english(browser: Browser, served: Served) -> None:
    context = await browser.new_context(locale="fr-FR")
    page = await context.new_page()
    await page.goto(served.url)
    await page.get_by_label("Your message").wait_for()
    await context.close()


async def test_the_page_can_be_installed(browser: Browser, served: Served) -> None:
    page = await browser.new_page()
    await page.goto(served.url)
    path = await page.locator("link[rel=manifest]").get_attribute("href")
    assert path is not None
    async with httpx.AsyncClient(base_url=served.url) as client:
        response = await client.get(path)
        assert response.headers["content-type"].startswith("application/manifest+json")
        manifest = response.json()
        assert (manifest["display"], manifest["start_url"]) == ("standalone", "/")
        for icon in manifest["icons"]:
            image = await client.get(icon["src"])
            assert (image.status_code, image.headers["content-type"]) == (200, icon["type"])
    session = await page.context.new_cdp_session(page)
    found = await session.send("Page.getAppManifest")
    assert found["errors"] == []
    await page.close()
