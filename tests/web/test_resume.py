"""Answers that go on: where the page is loaded anew, its connection is cut, it sleeps, or another tab had them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio

from tests.server.fake_engine import FakeEngine
from tests.web.chromium import CHROMIUM, ask, shows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page, WebSocketRoute

    from tests.server.conftest import Served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
TEXT = "Hello there, friend"
IS_WRITTEN = """async () => {
    const read = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result) })
    const database = await read(indexedDB.open('unicorn-chat'))
    const messages = await read(database.transaction('messages').objectStore('messages').getAll())
    database.close()
    return messages.some(({ text, state }) => text === 'Hello there,' && state === 'streaming')
}"""
SET_HIDDEN = """(hidden) => {
    Object.defineProperty(document, 'hidden', { value: hidden, configurable: true })
    document.dispatchEvent(new Event('visibilitychange'))
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> FakeEngine:
    """Holds its answer before the last word."""
    engine = FakeEngine()
    engine.hold[2] = asyncio.Event()
    return engine


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context()
    page = await context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    await context.close()
    assert problems == []


async def ask_and_wait(page: Page) -> None:
    """Ask, and wait until half of the answer is shown and written."""
    await ask(page, "Hi")
    await page.locator(".assistant[aria-busy] .body", has_text="Hello there,").wait_for()
    while not await page.evaluate(IS_WRITTEN):
        pass


async def is_whole(page: Page, engine: FakeEngine) -> None:
    """See that the answer ended with all of its text, once, and was generated once."""
    await page.locator(".assistant:not([aria-busy]) .body", has_text=TEXT).wait_for()
    assert await page.locator(".message .body").all_inner_texts() == ["Hi", TEXT]
    assert await page.locator(".note").count() == 0
    assert len(engine.calls) == 1


@asynccontextmanager
async def wire(served: Served) -> AsyncIterator[tuple[str, set[asyncio.StreamWriter]]]:
    """Carry bytes to the server and back; gives the address, and the ends that can be cut."""
    host, port = served.url.removeprefix("http://").split(":")
    ends: set[asyncio.StreamWriter] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        ends.update((writer, far_writer))
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        ends.difference_update((writer, far_writer))

    server = await asyncio.start_server(connected, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", ends
        for end in tuple(ends):
            end.transport.abort()


async def test_a_reload_keeps_conversation_and_draft_and_the_answer_goes_on(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    await page.goto(served.url)
    await ask_and_wait(page)
    await page.get_by_label("Your message").fill("a draft")
    await page.reload()
    await page.locator(".assistant[aria-busy] .body", has_text="Hello there,").wait_for()
    assert await page.get_by_label("Your message").input_value() == "a draft"
    engine.hold[2].set()
    await is_whole(page, engine)


async def test_an_answer_that_ended_while_nobody_looked_is_there(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    await page.goto(served.url)
    await ask_and_wait(page)
    await page.goto("about:blank")
    engine.hold[2].set()
    await engine.calls[0].closed.wait()
    await page.goto(served.url)
    await is_whole(page, engine)


async def test_an_answer_that_was_taken_up_is_stopped(page: Page, served: Served, engine: FakeEngine) -> None:
    await page.goto(served.url)
    await ask_and_wait(page)
    await page.reload()
    await page.get_by_role("button", name="Stop").click()
    await shows(page, ".note", "Stopped")
    await asyncio.wait_for(engine.calls[0].closed.wait(), 120)
    assert await page.locator(".assistant .body").inner_text() == "Hello there,"


async def test_an_answer_survives_a_connection_that_is_cut(page: Page, served: Served, engine: FakeEngine) -> None:
    async with wire(served) as (url, ends):
        await page.goto(url)
        await ask_and_wait(page)
        for end in tuple(ends):
            end.transport.abort()
        await page.locator("#status", has_text="Connecting").wait_for()
        engine.hold[2].set()
        await is_whole(page, engine)


async def test_who_stops_while_the_connection_is_cut_has_stopped(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    async with wire(served) as (url, ends):
        await page.goto(url)
        await ask_and_wait(page)
        await page.context.set_offline(True)
        for end in tuple(ends):
            end.transport.abort()
        await shows(page, ".note", "goes on once it is back")
        await page.get_by_role("button", name="Stop").click()
        await shows(page, ".note", "Stopped")


async def test_what_was_to_be_stopped_when_the_connection_broke_is_stopped_at_the_server(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    async with wire(served) as (url, ends):
        await page.goto(url)
        await ask_and_wait(page)
        for end in tuple(ends):
            end.transport.pause_reading()  # type: ignore[attr-defined]  # what the page sends comes no further
        await page.get_by_role("button", name="Stop").click()
        await page.locator("#stop:disabled").wait_for()
        for end in tuple(ends):
            end.transport.abort()
        await shows(page, ".note", "Stopped")
        await asyncio.wait_for(engine.calls[0].closed.wait(), 120)
        engine.hold[2].set()
        await page.reload()
        await shows(page, ".note", "Stopped")
        assert await page.locator(".assistant .body").inner_text() == "Hello there,"


async def test_an_answer_whose_first_event_the_page_never_saw_is_taken_up(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    is_cut = True

    def connected(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: None if is_cut and "response." in str(message) else socket.send(message))

    await page.route_web_socket("**/v1/responses*", connected)
    await page.goto(served.url)
    await ask(page, "Hi")
    await engine.called.wait()
    await page.locator(".assistant[aria-busy]").wait_for()
    async with asyncio.timeout(120):
        while not await page.evaluate(IS_WRITTEN.replace("'Hello there,'", "''").replace("streaming", "waiting")):
            pass
    is_cut = False
    await page.reload()
    await page.locator(".assistant[aria-busy] .body", has_text="Hello there,").wait_for()
    engine.hold[2].set()
    await is_whole(page, engine)


async def test_after_a_sleep_the_answer_goes_on_over_a_new_connection(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    await page.clock.install()
    await page.goto(served.url)
    await ask(page, "Hi")
    await page.clock.run_for(1000)
    await page.locator(".assistant[aria-busy] .body", has_text="Hello there,").wait_for()
    await page.evaluate(SET_HIDDEN, True)
    await page.clock.fast_forward(40_000)
    await page.evaluate(SET_HIDDEN, False)
    await page.clock.run_for(1000)
    engine.hold[2].set()
    while len(sockets) < 2:
        await page.clock.run_for(1000)
    await page.clock.resume()
    await is_whole(page, engine)


async def test_another_tab_takes_an_answer_over(page: Page, served: Served, engine: FakeEngine) -> None:
    await page.goto(served.url)
    await ask_and_wait(page)
    other = await page.context.new_page()
    await other.goto(served.url)
    await other.get_by_role("button", name="Chats").click()
    await other.locator("#chats-list .name", has_text="Hi").click()
    await other.locator(".assistant[aria-busy] .body", has_text="Hello there,").wait_for()
    assert await other.get_by_role("button", name="Stop").count() == 0
    await page.close()
    await other.get_by_role("button", name="Stop").wait_for()
    engine.hold[2].set()
    await is_whole(other, engine)


async def test_the_server_keeps_nothing_of_an_answer_that_the_page_has(
    page: Page, served: Served, engine: FakeEngine
) -> None:
    await page.goto(served.url)
    await ask_and_wait(page)
    async with httpx.AsyncClient(base_url=served.url) as client:
        name = engine.calls[0].request_id
        assert (await client.get(f"/v1/responses/{name}")).json()["status"] == "in_progress"
        async with page.expect_response(lambda response: response.request.method == "DELETE"):
            engine.hold[2].set()
        assert (await client.get(f"/v1/responses/{name}")).status_code == 404
