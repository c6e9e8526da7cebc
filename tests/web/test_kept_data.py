"""What the browser keeps: where it refuses to, where records are damaged, and what is deleted and comes back."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.fake_engine import FakeEngine, words
from tests.web.chromium import CHROMIUM, ask, shows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import TypeAlias

    from playwright.async_api import Browser, BrowserContext, Page

    from tests.server.conftest import Served

    Records: TypeAlias = list[dict[str, object]]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
REFUSE = """(where, name) => {
    const refuse = () => { throw new DOMException('denied', 'SecurityError') }
    Object.defineProperty(where, name, { get: refuse, set: refuse, configurable: true })
}"""
NOTHING_IS_KEPT = f"""(() => {{
    const refuse = {REFUSE}
    for (const name of ['sessionStorage', 'localStorage', 'indexedDB', 'BroadcastChannel']) refuse(window, name)
    refuse(Navigator.prototype, 'locks')
}})()"""
NOTHING_IS_THERE = """(() => {
    for (const name of ['sessionStorage', 'localStorage', 'indexedDB', 'BroadcastChannel']) {
        Object.defineProperty(window, name, { value: undefined, configurable: true })
    }
    Object.defineProperty(Navigator.prototype, 'locks', { value: undefined, configurable: true })
})()"""
SLOW_DATABASE = """(() => {
    const open = IDBFactory.prototype.open
    let answer
    const isThere = new Promise((resolve) => { answer = resolve })
    window.answer = () => { answer(); IDBFactory.prototype.open = open }
    IDBFactory.prototype.open = function (...all) {
        const request = Object.setPrototypeOf(new EventTarget(), IDBOpenDBRequest.prototype)
        void isThere.then(() => {
            const real = open.apply(this, all)
            real.addEventListener('success', () => {
                Object.defineProperty(request, 'result', { value: real.result })
                request.dispatchEvent(new Event('success'))
            })
        })
        return request
    }
})()"""
DATABASE = """async (change) => {
    const read = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result) })
    const database = await read(indexedDB.open('unicorn-chat'))
    const transaction = database.transaction(['conversations', 'messages'], 'readwrite')
    const chats = transaction.objectStore('conversations'), messages = transaction.objectStore('messages')
    if (change === 'damage') {
        const [question, answer] = (await read(messages.getAll())).sort((one, other) => one.order - other.order)
        await read(messages.put({ ...answer, text: null, statistics: { tokens: 'many' } }))
        await read(chats.put({ id: 'bad', title: {}, draft: 7 }))
    }
    const found = [await read(chats.getAll()), await read(messages.getAll())]
    database.close()
    return found
}"""
WITHOUT_STORES = """() => new Promise((resolve) => {
    const request = indexedDB.open('unicorn-chat', 1)
    request.onsuccess = () => { request.result.close(); resolve() }
})"""


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """Pages of one browser; what they throw fails the test."""
    context = await browser.new_context()
    problems: list[str] = []
    context.on("weberror", lambda error: problems.append(str(error.error)))
    yield context
    await context.close()
    assert problems == []


async def answered(page: Page, number: int = 1) -> None:
    await page.locator(".assistant:not([aria-busy]) .body").nth(number - 1).wait_for()


async def kept(page: Page) -> tuple[Records, Records]:
    """The database's conversations and messages."""
    found: tuple[Records, Records] = await page.evaluate(DATABASE, "")
    return found


async def until(page: Page, is_so: Callable[[Records, Records], bool]) -> None:
    """Wait until the database is so."""
    async with asyncio.timeout(120):
        while not is_so(*(await kept(page))):
            pass


@pytest.mark.parametrize("how", [NOTHING_IS_KEPT, NOTHING_IS_THERE], ids=["refused", "missing"])
async def test_a_browser_that_keeps_nothing_has_the_whole_page(
    context: BrowserContext, served: Served, engine: FakeEngine, how: str
) -> None:
    page = await context.new_page()
    await page.add_init_script(how)
    await page.goto(served.url)
    await ask(page, "Hi")
    await answered(page)
    await shows(page, "#status", "can't be kept")
    engine.hold[1] = asyncio.Event()
    await ask(page, "And?")
    await page.get_by_role("button", name="Stop").click()
    await shows(page, ".note", "Stopped")
    await page.get_by_role("button", name="Chats").click()
    await page.get_by_label("Language").select_option("de")
    await shows(page, "#status", "nicht aufbewahrt")


async def test_a_database_that_does_not_answer_keeps_nobody_waiting_and_is_used_once_it_does(
    context: BrowserContext, served: Served
) -> None:
    page = await context.new_page()
    await page.goto(served.url)
    await ask(page, "Before")
    await answered(page)
    await until(page, lambda _, messages: bool(messages))
    await page.add_init_script(SLOW_DATABASE)
    await page.goto(served.url)
    await shows(page, "#status", "does not answer (yet)")
    await ask(page, "Meanwhile")
    await answered(page)
    await page.evaluate("answer()")
    await page.locator("#status:not(.problem)").wait_for(state="attached")
    await until(page, lambda chats, _: len(chats) == 2)
    await page.get_by_role("button", name="Chats").click()
    await page.locator("#chats-list .name", has_text="Before").click()
    await shows(page, ".user .body", "Before")


async def test_a_full_storage_is_told_and_once_there_is_room_all_is_kept(
    context: BrowserContext, served: Served, tmp_path: Path
) -> None:
    page = await context.new_page()
    await page.goto(served.url)
    (tmp_path / "large.txt").write_text(random.randbytes(400_000).hex())
    session = await context.new_cdp_session(page)
    await session.send("Storage.overrideQuotaForOrigin", {"origin": served.url, "quotaSize": 790_000})
    await page.locator("#attach").set_input_files(tmp_path / "large.txt")
    await shows(page, "#status", "storage is full")
    await ask(page, "Hi")
    await answered(page)
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Small")
    await answered(page, 1)
    await until(page, lambda _, messages: "Small" in str(messages))
    assert "large.txt" not in str(await kept(page))
    await session.send("Storage.overrideQuotaForOrigin", {"origin": served.url})
    await page.get_by_label("Your message").fill("more")
    await page.locator("#status:not(.problem)").wait_for(state="attached")
    assert "large.txt" in str((await kept(page))[1])


async def test_a_database_without_stores_gets_them(context: BrowserContext, served: Served) -> None:
    page = await context.new_page()
    await page.goto(f"{served.url}/health")
    await page.evaluate(WITHOUT_STORES)
    await page.goto(served.url)
    await ask(page, "Hi")
    await answered(page)
    assert await page.locator("#status").inner_text() == ""
    await until(page, lambda _, messages: len(messages) == 2)


async def test_a_damaged_record_is_told_and_the_rest_is_shown_and_exported(
    context: BrowserContext, served: Served, tmp_path: Path
) -> None:
    page = await context.new_page()
    await page.goto(served.url)
    await ask(page, "Hi")
    await answered(page)
    await until(page, lambda _, messages: [message["state"] for message in messages] == ["done", "done"])
    await page.evaluate(DATABASE, "damage")
    await page.reload()
    await shows(page, "#notice", "2 records of this browser's database are damaged")
    await shows(page, ".user .body", "Hi")
    await ask(page, "And?")
    await page.locator(".assistant .body", has_text="Hello there, friend").wait_for()
    await page.get_by_role("button", name="Chats").click()
    await shows(page, "#chats-dialog .problem", "2 records")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export").click()
    file = tmp_path / "conversations.json"
    await (await download.value).save_as(file)
    await page.locator("#chats-import").set_input_files(file)
    await shows(page, "#notice", "read")
    assert "could not" not in await page.locator("#notice").inner_text()
    texts = [message["text"] for chat in json.loads(file.read_text())["conversations"] for message in chat["messages"]]
    assert texts == ["Hi", "", "And?", "Hello there, friend"]


async def test_a_draft_that_was_cleared_stays_cleared(context: BrowserContext, served: Served) -> None:
    page = await context.new_page()
    await page.goto(served.url)
    prompt = page.get_by_label("Your message")
    await prompt.fill("a draft")
    await until(page, lambda chats, _: bool(chats))
    await page.evaluate("""() => {
        const area = document.getElementById('prompt')
        area.value = ''
        area.dispatchEvent(new Event('input', { bubbles: true }))
        IDBDatabase.prototype.transaction = () => { throw new Error('it is too late') }
    }""")
    await page.reload()
    await page.locator("#device", has_text="Fake GPU").wait_for()
    assert await prompt.input_value() == ""


async def test_what_was_deleted_while_it_was_answered_comes_back_with_what_had_come(
    context: BrowserContext, served: Served, engine: FakeEngine
) -> None:
    page = await context.new_page()
    await page.goto(served.url)
    engine.hold[2] = asyncio.Event()
    await ask(page, "First")
    await shows(page, ".assistant .body", "Hello there,")
    await page.locator(".user").get_by_role("button", name="Delete").click()
    await asyncio.wait_for(engine.calls[0].closed.wait(), 120)  # nobody wants the rest
    engine.hold.clear()
    engine.script = words("Another answer")
    await ask(page, "Second")
    await shows(page, ".assistant:not([aria-busy]) .body", "Another answer")
    await page.get_by_role("button", name="Undo").click()
    await shows(page, ".versions", "2 of 2")
    assert await page.locator(".user .body").inner_text() == "Second"
    await page.get_by_role("button", name="Previous version").click()
    await shows(page, ".note", "Stopped")
    assert await page.locator(".assistant:not([aria-busy]) .body").inner_text() == "Hello there,"


async def test_what_another_tab_deletes_while_it_is_answered_ends_and_leaves_nothing(
    context: BrowserContext, served: Served, engine: FakeEngine
) -> None:
    page = await context.new_page()
    await page.goto(served.url)
    engine.hold[2] = asyncio.Event()
    await ask(page, "First")
    await shows(page, ".assistant .body", "Hello there,")
    await until(page, lambda _, messages: len(messages) == 2)
    other = await context.new_page()
    await other.goto(served.url)
    await other.get_by_role("button", name="Chats").click()
    await other.get_by_role("button", name="Delete First").click()
    await page.locator("#welcome").wait_for()
    await asyncio.wait_for(engine.calls[0].closed.wait(), 120)
    await page.get_by_label("Your message").fill("another")
    await until(page, lambda chats, _: "another" in str(chats))
    chats, messages = await kept(page)
    assert (len(chats), messages) == (1, [])
