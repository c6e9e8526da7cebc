"""Choosing a model on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_library import FakeLibrary, prepared
from tests.web.chromium import CHROMIUM, ask, shows
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.server import ModelHost, ServerOptions

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


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


@pytest_asyncio.fixture(loop_scope="session")
async def models(library: FakeLibrary) -> AsyncIterator[ModelHost]:
    async with ModelHost(library) as host:
        yield host


@pytest_asyncio.fixture(loop_scope="session")
async def served(models: ModelHost) -> AsyncIterator[Served]:
    await models.begin(prepared("a")).done()
    async with serving(models) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, served: Served) -> AsyncIterator[Page]:
    page = await browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    await page.goto(served.url)
    await shows(page, "#model", "a")
    yield page
    await page.close()
    assert problems == []


async def choose(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Models").click()
    await load(page, name)


async def load(page: Page, name: str) -> None:
    await page.locator(f"[data-model='{name}']").click()
    await page.get_by_role("button", name="Load", exact=True).click()


async def test_a_model_is_chosen_and_its_load_is_shown(page: Page, library: FakeLibrary) -> None:
    await ask(page, "Who are you?")
    await shows(page, ".assistant:not([aria-busy]) .body", "I am a")
    library.hold_load.add("b")
    await choose(page, "b")
    await shows(page, "#load-text", "Loading b")
    await shows(page, "#load-numbers", "1 of 4 layers")
    await shows(page, "#model", "b")
    await ask(page, "And now?")
    await shows(page, ".assistant .waiting", "as soon as the model is loaded")
    await library.engines[1].set_loaded(43)
    await page.locator("#load-bar[aria-valuenow='43']").wait_for()
    await shows(page, "#load-numbers", "1 of 4 layers, 1 s left")
    await library.engines[1].set_loaded(100)
    await page.locator("#load").wait_for(state="hidden")
    await page.locator(".assistant:not([aria-busy]) .body").nth(1).wait_for()
    assert await page.locator(".assistant .body").all_inner_texts() == ["I am a", "I am b"]
    await shows(page, ".switched", "b answers now")


async def test_a_model_that_is_being_opened_is_shown_and_questions_wait_for_it(
    page: Page, library: FakeLibrary
) -> None:
    library.hold_open["b"] = asyncio.Event()
    await choose(page, "b")
    await shows(page, "#load-text", "Opening b")
    await shows(page, "#device", "opening a device")
    await ask(page, "Who are you?")
    await shows(page, ".assistant .waiting", "as soon as the model is loaded")
    library.hold_open["b"].set()
    await shows(page, ".assistant:not([aria-busy]) .body", "I am b")


async def test_an_answer_that_a_switch_broke_off_says_why(page: Page, library: FakeLibrary) -> None:
    library.engines[0].hold[1] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant .body", "I")
    await choose(page, "b")
    await shows(page, ".note", "is being switched to 'b'")
    await shows(page, "#model", "b")


async def test_the_keyboard_is_enough(page: Page) -> None:
    await page.get_by_label("Your message").focus()
    await page.keyboard.press("Shift+Tab")  # past the examples, which are disabled while not connected, to the head
    while not await page.evaluate("document.activeElement.id === 'models-button'"):
        await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await page.locator("#models-list [role='option']").nth(2).wait_for()
    assert await page.evaluate("document.activeElement.id") == "models-search"
    assert await page.locator("[aria-current]").inner_text() == "a\nloaded"
    await page.keyboard.press("Escape")
    await page.locator("#models-dialog").wait_for(state="hidden")
    assert await page.evaluate("document.activeElement.id") == "models-button"
    await page.keyboard.press("Enter")
    await page.locator("#models-list [role='option']").nth(2).wait_for()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await shows(page, "#model", "c")


async def test_what_is_refused_and_what_fails_is_there_to_see(page: Page, library: FakeLibrary) -> None:
    library.refuse = OutOfMemoryError("b: 2 GiB missing")
    await choose(page, "b")
    await shows(page, "#models-error", "b: 2 GiB missing")
    await shows(page, "#model", "a")
    library.refuse = None
    library.fail_open["b"] = OutOfMemoryError("2 GiB needed")
    await load(page, "b")
    await shows(page, "#load-text", "b could not be loaded: 2 GiB needed")
    await ask(page, "Hi")
    await shows(page, ".problem", "2 GiB needed")
    await choose(page, "a")
    await page.locator("#load").wait_for(state="hidden")
    await shows(page, "#model", "a")


async def test_a_question_that_waited_for_a_model_that_failed_is_asked_again(page: Page, library: FakeLibrary) -> None:
    library.hold_open["b"] = asyncio.Event()
    library.fail_open["b"] = OutOfMemoryError("2 GiB needed")
    await choose(page, "b")
    await shows(page, "#load-text", "Opening b")
    await ask(page, "Who are you?")
    await shows(page, ".assistant .waiting", "as soon as the model is loaded")
    await page.get_by_label("Your message").fill("Something else")
    library.hold_open["b"].set()
    await shows(page, ".note.problem", "2 GiB needed")
    assert await page.locator(".user .body").inner_text() == "Who are you?"
    assert await page.get_by_label("Your message").input_value() == "Something else"
    await choose(page, "a")
    await page.locator("#load").wait_for(state="hidden")
    await page.locator(".note").get_by_role("button", name="Ask again").click()
    await shows(page, ".assistant:not([aria-busy]) .body", "I am a")


async def test_a_model_answers_once_its_first_word_is_there(page: Page, library: FakeLibrary) -> None:
    await ask(page, "Who are you?")
    await shows(page, ".assistant:not([aria-busy]) .body", "I am a")
    library.hold_load.add("b")
    await choose(page, "b")
    await shows(page, "#load-text", "Loading b")
    await ask(page, "And now?")
    await shows(page, ".assistant .waiting", "as soon as the model is loaded")
    assert await page.locator(".switched").count() == 0
    await library.engines[1].set_loaded(100)
    await shows(page, ".switched", "b answers now")


async def test_a_model_is_unloaded_and_the_page_says_so(page: Page) -> None:
    await page.get_by_role("button", name="Models").click()
    await page.get_by_role("button", name="Unload").click()
    await shows(page, "#load-text", "No model is loaded")
    await shows(page, "#model", "No model")
    await shows(page, "#device", "no device in use")
    await choose(page, "c")
    await shows(page, "#device", "Fake GPU")


async def test_a_server_that_keeps_its_model_offers_no_others(browser: Browser, library: FakeLibrary) -> None:
    async with ModelHost(library, can_switch=False) as models:
        await models.begin(prepared("a")).done()
        async with serving(models) as served:
            page = await browser.new_page()
            await page.goto(served.url)
            await shows(page, "#device", "Fake GPU")
            assert not await page.locator("#models-button").is_visible()
            await page.close()


async def test_the_key_goes_along(browser: Browser, models: ModelHost) -> None:
    await models.begin(prepared("a")).done()
    async with serving(models, ServerOptions(api_key="sesame")) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        await page.get_by_label("API key", exact=True).fill("sesame")
        await page.get_by_role("button", name="Connect").click()
        await choose(page, "b")
        await shows(page, "#model", "b")
        await page.close()


@pytest.mark.parametrize(
    ("width", "height"), [(320, 568), *(pytest.param(*size, marks=WIDER) for size in ((390, 844), (1280, 800)))]
)
async def test_the_dialog_fits_and_is_large_enough_for_a_thumb(
    browser: Browser, served: Served, library: FakeLibrary, width: int, height: int
) -> None:
    library.more = tuple(
        f"somebody/a-model-with-a-rather-long-name-{number}-instruct-q4_k_m.gguf" for number in range(30)
    )
    page = await browser.new_page(viewport={"width": width, "height": height})
    await page.goto(served.url)
    await page.get_by_role("button", name="Models").click()
    await page.locator("#models-list [role='option']").nth(32).wait_for()
    for selector in ("#models-dialog", "#unload"):
        box = await page.locator(selector).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["y"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= height
    box = await page.locator("#models-list [role='option']").first.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await page.close()
