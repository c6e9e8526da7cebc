"""A load, layer by layer, and a question that follows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.server.fake_library import FakeLibrary, prepared
from tests.web.axe import needs_axe, violations
from tests.web.chromium import CHROMIUM, ask, becomes, shows
from unicorn_async.errors import DeviceLostError
from unicorn_async.loader.progress import LoadProgress
from unicorn_async.server import ModelHost

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, WebSocket

    from tests.server.conftest import Served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
TOTAL = 15_600_000_000


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> FakeEngine:
    """An engine that loads, with 12 of 62 layers."""
    made = FakeEngine()
    made.loaded.clear()
    made.bytes_total, made.bytes_loaded, made.load_seconds = TOTAL, 2_100_000_000, 1.1
    made.num_layers, made.layers_active = 62, 12
    return made


async def opened(browser: Browser, served: Served, **options: str) -> Page:
    page = await browser.new_page(**options)  # type: ignore[arg-type]
    await page.goto(served.url)
    await shows(page, "#load-numbers", "12 of 62 layers")
    return page


async def follow(engine: FakeEngine, *, passed: int, layers: int) -> None:
    """Let the load go on, and the first question pass some layers of it."""
    await engine.called.wait()
    request_id = engine.calls[0].request_id
    assert request_id is not None
    engine.prompts = {request_id: passed}
    engine.layers_active = layers
    await engine.set_loaded(engine.bytes_loaded + 100_000_000)


async def test_each_layer_lights_up_as_it_comes(browser: Browser, served: Served, engine: FakeEngine) -> None:
    page = await opened(browser, served)
    assert await page.locator(".cell").count() == 62
    assert await page.locator(".cell.on").count() == 12
    bar = page.get_by_role("progressbar", name="Loading fake-model")
    assert await bar.get_attribute("aria-valuenow") == "13"
    text = "2.1 of 15.6 GB, 1.9 GB/s, 12 of 62 layers, 8 s left"
    assert await bar.get_attribute("aria-valuetext") == text
    engine.layers_active = 40
    await engine.set_loaded(10_000_000_000)
    await shows(page, "#load-numbers", "40 of 62 layers")
    await becomes(page, "document.querySelectorAll('.cell.on').length === 40")
    assert await page.locator(".cell.on ~ .cell:not(.on)").count() == 22  # in order
    await engine.set_loaded(TOTAL)
    await page.locator("#load").wait_for(state="detached")
    await page.close()


async def test_a_download_that_the_load_waits_for_is_shown_as_one(browser: Browser) -> None:
    library = FakeLibrary()
    library.downloads = [LoadProgress(0, 0, 0, 0, 2.0, False, False, 16_000_000_000, 4_000_000_000)] * 2000
    async with ModelHost(library) as models, serving(models) as found:
        models.begin(prepared("a"))
        page = await browser.new_page()
        await page.goto(found.url)
        await shows(page, "#load-text", "Opening a")
        await shows(page, "#load-numbers", "4.0 of 16.0 GB downloaded")
        await shows(page, "#device", "downloading…")
        assert await page.locator("#load-bar").get_attribute("aria-valuenow") == "25"
        assert await page.locator(".cell.on").count() * 4 == await page.locator(".cell").count()
        await page.close()


async def test_a_question_climbs_through_the_layers(browser: Browser, served: Served, engine: FakeEngine) -> None:
    page = await opened(browser, served)
    await ask(page, "Hi")
    await follow(engine, passed=5, layers=20)
    await shows(page, ".climb", "Your question has passed 5 of 62 layers")
    await becomes(page, "document.querySelectorAll('.cell.passed').length === 5")
    await follow(engine, passed=30, layers=31)
    await shows(page, ".climb", "passed 30 of 62")
    assert await page.locator(".tower").evaluate("tower => tower.style.getPropertyValue('--passed')") == str(30 / 62)
    assert await page.locator(".climb").get_attribute("aria-hidden") == "true"  # the log would read out each step
    await engine.set_loaded(TOTAL)
    await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
    assert await page.locator(".climb").count() == 0
    await page.close()


async def test_nothing_is_drawn_while_nobody_looks(browser: Browser, served: Served, engine: FakeEngine) -> None:
    page = await browser.new_page()
    async with page.expect_event("websocket") as opening:
        await page.goto(served.url)
    socket: WebSocket = await opening.value
    await shows(page, "#load-numbers", "12 of 62 layers")
    await page.evaluate(HIDE, True)
    engine.layers_active = 50
    async with socket.expect_event("framereceived", lambda frame: '"layers_active":50' in str(frame)):
        await engine.set_loaded(11_000_000_000)
    assert await page.locator(".cell.on").count() == 12
    await page.evaluate(HIDE, False)
    await page.locator(".cell.on").nth(49).wait_for()
    await page.close()


HIDE = """(isHidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_who_wants_less_motion_gets_none(browser: Browser, served: Served, engine: FakeEngine) -> None:
    page = await opened(browser, served, reduced_motion="reduce")
    await ask(page, "Hi")
    await follow(engine, passed=5, layers=20)
    await page.locator(".tower").wait_for()
    for element in (".cell", ".tower::after", ".waiting::after"):
        selector, _, part = element.partition("::")
        style = f"getComputedStyle(element, '{'::' + part if part else ''}' || null)"
        moving = f"element => [{style}.transitionDuration, {style}.animationName]"
        assert await page.locator(selector).first.evaluate(moving) == ["0s", "none"]
    await page.close()


@needs_axe
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.whole("the other colours"))])
async def test_nobody_is_kept_out_while_a_model_loads_or_when_it_fails(
    browser: Browser, served: Served, engine: FakeEngine, scheme: str
) -> None:
    page = await opened(browser, served, color_scheme=scheme, reduced_motion="reduce")
    assert await violations(page) == []
    await ask(page, "Hi")
    await follow(engine, passed=5, layers=20)
    await page.locator(".climb").wait_for()
    assert await violations(page) == []
    await engine.fail_load(DeviceLostError("the device is gone"))
    await shows(page, "#load.failed", "could not be loaded: the device is gone")
    await shows(page, ".note.problem", "the device is gone")
    assert await page.locator("#load-bar").count() == 0
    assert await violations(page) == []
    await page.close()


async def test_a_model_without_a_chat_template_says_so_in_place_of_examples(browser: Browser) -> None:
    engine = FakeEngine()
    engine.fake_tokenizer.has_chat_template = False
    async with serving(engine) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        await shows(page, "#no-template", "has no chat template")
        assert await page.locator(".example").count() == 0
        assert await violations(page) == []
        await page.close()


async def test_an_example_is_asked_by_a_press(browser: Browser) -> None:
    engine = FakeEngine()
    async with serving(engine) as served:
        page = await browser.new_page()
        await page.goto(served.url)
        await page.get_by_role("button", name="Once upon a time").click()
        await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
        await asyncio.wait_for(engine.called.wait(), 120)
        assert engine.fake_tokenizer.conversations[-1][0].content.startswith("Once upon a time")
        await page.close()
