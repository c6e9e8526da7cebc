"""Text files that go with a question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.web.chromium import CHROMIUM, shows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from tests.server.fake_engine import FakeEngine

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
IS_WRITTEN = """async () => {
    const read = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result) })
    const database = await read(indexedDB.open('unicorn-chat'))
    const chats = await read(database.transaction('conversations').objectStore('conversations').getAll())
    database.close()
    return chats.some(({ draft, draftFiles }) => draft === 'What is it?' && draftFiles.length === 2)
}"""
DROP = """() => {
    const transfer = new DataTransfer()
    transfer.items.add(new File(['dropped'], 'dropped.txt'))
    document.getElementById('scroller').dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true }))
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, engine: FakeEngine) -> AsyncIterator[Page]:
    async with serving(engine) as served:
        page = await browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(served.url)
        yield page
        await page.close()
        assert problems == []


async def test_files_are_attached_taken_away_kept_and_sent(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"content of {name}\n")
    await page.locator("#attach").set_input_files([tmp_path / "one.txt", tmp_path / "two.txt"])
    await shows(page, ".attached", "two.txt")
    await page.evaluate(DROP)
    await shows(page, ".attached", "dropped.txt")
    await page.get_by_role("button", name="Remove one.txt").click()
    await page.get_by_label("Your message").fill("What is it?")
    while not await page.evaluate(IS_WRITTEN):
        pass
    await page.reload()
    await shows(page, ".attached", "two.txt")
    await page.locator("#send:enabled").click()
    await page.locator(".assistant:not([aria-busy]) .body").wait_for()
    expected = "two.txt:\n```\ncontent of two.txt\n```\n\ndropped.txt:\n```\ndropped\n```\n\nWhat is it?"
    assert engine.fake_tokenizer.conversations[-1][0].content == expected
    assert await page.locator("footer .attached").count() == 0
    assert await page.locator(".user .attached .name").all_inner_texts() == ["two.txt", "dropped.txt"]
    await page.get_by_role("button", name="Ask again").click()
    await page.locator(".versions", has_text="2 of 2").wait_for()
    assert engine.fake_tokenizer.conversations[-1][0].content == expected


async def test_what_is_no_text_is_refused_by_name(page: Page, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "large.txt").write_text("x" * 1_500_000)
    await page.locator("#attach").set_input_files(tmp_path / "photo.jpg")
    await shows(page, "#problem", "photo.jpg is no text in UTF-8")
    await page.locator("#attach").set_input_files(tmp_path / "large.txt")
    await shows(page, "#problem", "large.txt has 1.5 MB; a file may have 1.0 MB")
    assert await page.locator(".attached").count() == 0
