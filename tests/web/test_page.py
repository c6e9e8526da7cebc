"""The chat page in a headless Chromium, against a server with a fake engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.lasting_port import lasting_port
from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine, words
from tests.web.chromium import CHROMIUM, ask, shows
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import DeviceLostError, QueueFullError
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.server.conftest import Served

WIDER = pytest.mark.whole("windows in which there is room to spare")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, served: Served) -> AsyncIterator[Page]:
    """The page, open; what it logs or throws fails the test."""
    page = await browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    await page.goto(served.url)
    yield page
    await page.close()
    assert [problem for problem in problems if "WebSocket" not in problem] == []


async def test_an_answer_streams_in_and_the_next_one_knows_the_conversation(page: Page, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    await ask(page, "What is 17 + 25?")
    await shows(page, ".assistant .body", "Hello")
    assert await page.locator(".assistant .body").inner_text() == "Hello"
    assert await page.locator(".assistant").get_attribute("aria-busy") == "true"
    engine.hold[1].set()
    await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
    await shows(page, "#speed", "tokens/s")
    await ask(page, "And more?")
    await page.locator(".assistant:not([aria-busy])").nth(1).wait_for()
    said = [(message.role, message.content) for message in engine.fake_tokenizer.conversations[-1]]
    assert said == [("user", "What is 17 + 25?"), ("assistant", "Hello there, friend"), ("user", "And more?")]


async def test_the_page_names_model_and_device_and_marks_software(page: Page) -> None:
    await shows(page, "#model", "fake-model")
    await shows(page, "#device", "Fake GPU")
    await shows(page, "#software", "SOFTWARE")


async def test_stop_ends_the_answer_and_keeps_what_has_come(page: Page, engine: FakeEngine) -> None:
    engine.hold[2] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant .body", "Hello there,")
    await page.get_by_role("button", name="Stop").click()
    await shows(page, ".note", "Stopped")
    assert await page.locator(".assistant .body").inner_text() == "Hello there,"
    await asyncio.wait_for(engine.calls[0].closed.wait(), 120)


async def test_new_chat_forgets_the_conversation_and_what_still_comes_of_it(page: Page, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant .body", "Hello")
    await page.get_by_role("button", name="New chat").click()
    engine.hold.clear()
    engine.script = words("Another answer")
    await ask(page, "Again")
    await shows(page, ".assistant:not([aria-busy]) .body", "Another answer")
    assert await page.locator(".message").count() == 2
    assert [message.content for message in engine.fake_tokenizer.conversations[-1]] == ["Again"]


async def test_shift_enter_makes_a_line_and_enter_sends(page: Page, engine: FakeEngine) -> None:
    prompt = page.get_by_label("Your message")
    await prompt.press_sequentially("one")
    await prompt.press("Shift+Enter")
    await prompt.press_sequentially("two")
    await page.locator("#send:enabled").wait_for()
    await prompt.press("Enter")
    await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
    assert engine.fake_tokenizer.conversations[-1][0].content == "one\ntwo"
    assert await prompt.input_value() == ""


async def test_the_models_text_never_becomes_markup(page: Page, engine: FakeEngine) -> None:
    text = "<img src=x onerror=alert(1)> **bold <b>x</b>** `code <i>` \n```html\n<script>alert(2)</script>\n```\nend"
    engine.script = [Token(1, text), Token(2, "", finish_reason=FinishReason.STOP)]
    await ask(page, "Hi")
    await shows(page, ".assistant:not([aria-busy]) .body", "end")
    body = page.locator(".assistant .body")
    assert await body.locator("img, b, i, script").count() == 0
    assert await body.locator("strong").inner_text() == "bold <b>x</b>"
    assert await body.locator("p code").inner_text() == "code <i>"
    assert await body.locator("pre code").inner_text() == "<script>alert(2)</script>"


async def test_the_load_is_shown_and_a_question_waits_for_its_end(browser: Browser, engine: FakeEngine) -> None:
    engine.loaded.clear()
    engine.bytes_total, engine.bytes_loaded, engine.load_seconds = 15_600_000_000, 2_100_000_000, 1.1
    engine.num_layers, engine.layers_active = 62, 12
    async with serving(engine) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        await shows(page, "#load-text", "Loading fake-model")
        await shows(page, "#load-numbers", "2.1 of 15.6 GB, 1.9 GB/s, 12 of 62 layers, 8 s left")
        assert await page.locator("#load-bar").get_attribute("aria-valuenow") == "13"
        await ask(page, "Hi")
        await shows(page, ".assistant .waiting", "as soon as the model is loaded")
        await engine.set_loaded(15_600_000_000)
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        await page.locator("#load").wait_for(state="hidden")
        await page.close()


@pytest.mark.parametrize("width", [320, pytest.param(1280, marks=WIDER)])
async def test_a_load_that_takes_long_fits_a_narrow_window(browser: Browser, engine: FakeEngine, width: int) -> None:
    engine.loaded.clear()
    engine.model_name = "somebody-with-a-long-name-gemma-3-27b-it-instruct-q4_k_m.gguf"
    engine.bytes_total, engine.bytes_loaded, engine.load_seconds = 950_000_000, 123_456_789, 30.0
    async with serving(engine) as served:
        page = await browser.new_page(viewport={"width": width, "height": 600})
        await page.goto(served.url)
        await shows(page, "#load-numbers", "123.5 of 950.0 MB, 4.1 MB/s, 1 of 4 layers, 3 min 21 s left")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.close()


async def test_errors_are_there_to_see(page: Page, engine: FakeEngine) -> None:
    engine.refuse = QueueFullError("256 requests wait already")
    await ask(page, "Hi")
    await shows(page, ".problem", "256 requests wait already")
    assert await page.locator(".user .body").inner_text() == "Hi"
    engine.refuse = None
    engine.fail[1] = DeviceLostError("the device is gone")
    await page.locator(".note").get_by_role("button", name="Ask again").click()
    await shows(page, ".note", "the device is gone")
    assert await page.locator(".assistant .body").inner_text() == "Hello"


async def test_a_server_that_goes_away_is_told_and_comes_back(browser: Browser, engine: FakeEngine) -> None:
    page, port = await browser.new_page(), lasting_port()
    engine.hold[1] = asyncio.Event()
    async with serving(engine, port=port) as served:
        await page.goto(served.url)
        await ask(page, "Hi")
        await shows(page, ".assistant .body", "Hello")
    await shows(page, ".note", "the server is shutting down")
    await shows(page, "#status", "Connecting")
    engine.hold.clear()
    async with serving(engine, port=port):
        await ask(page, "Again")
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        await page.close()


async def test_a_server_with_a_key_asks_for_it(browser: Browser, engine: FakeEngine) -> None:
    options = ServerOptions(api_key="sesame")
    async with serving(engine, options) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        await page.get_by_label("API key", exact=True).fill("wrong")
        await page.get_by_role("button", name="Connect").click()
        await page.locator("#key-error").wait_for()
        await page.get_by_label("API key", exact=True).fill("sesame")
        await page.get_by_role("button", name="Connect").click()
        await ask(page, "Hi")
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        await page.close()


async def test_who_leaves_the_question_for_the_key_is_told_and_asked_again(
    browser: Browser, engine: FakeEngine
) -> None:
    async with serving(engine, ServerOptions(api_key="sesame")) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        await page.locator("#key-dialog").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("#key-dialog").wait_for(state="detached")
        await shows(page, "#status", "wants an API key")
        await page.get_by_role("button", name="Enter the key").click()
        await page.get_by_label("API key", exact=True).fill("sesame")
        await page.keyboard.press("Enter")
        await shows(page, "#device", "Fake GPU")
        await page.close()


@pytest.mark.parametrize(
    ("width", "height"), [(320, 568), *(pytest.param(*size, marks=WIDER) for size in ((390, 844), (1280, 800)))]
)
async def test_nothing_runs_over_the_edge(
    browser: Browser, served: Served, engine: FakeEngine, width: int, height: int
) -> None:
    long = "```\n" + "x" * 500 + "\n```\n" + "y" * 500
    engine.script = [Token(1, long), Token(2, "", finish_reason=FinishReason.STOP)]
    page = await browser.new_page(viewport={"width": width, "height": height})
    await page.goto(served.url)
    await ask(page, "z" * 300)
    await page.locator(".assistant:not([aria-busy]) pre").wait_for()
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    box = await page.get_by_role("button", name="Send").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width
    assert box["y"] + box["height"] <= height
    await page.close()


async def test_the_page_loads_nothing_from_elsewhere(page: Page, served: Served) -> None:
    response = await page.goto(served.url)
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    urls = await page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert urls
    assert all(url.startswith(served.url) for url in urls)
