"""The view of what the engine does: with steps made up, and with a model that answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.conftest import VALIDATION, choose
from tests.server.conftest import serving
from tests.server.test_step_watch import note_step
from tests.web.chromium import CHROMIUM, ask, shows
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.gpu.instance import Instance
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.sequence import Sequence

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


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, engine: FakeEngine) -> AsyncIterator[Page]:
    async with serving(engine) as served:
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(served.url)
        await shows(page, "#device", "Fake GPU")
        yield page
        await page.close()
        assert problems == []


async def drawn(page: Page, name: str, number: int) -> None:
    """Wait until a drawing has so much."""
    await page.locator(f"#inside-{name}[data-drawn='{number}']").wait_for()


async def number(page: Page, name: str) -> str:
    return await page.locator(".inside-numbers div", has_text=name).locator("dd").inner_text()


async def test_nothing_is_asked_for_before_the_view_is_open_or_after_it_was(page: Page, engine: FakeEngine) -> None:
    await ask(page, "Hi")
    await shows(page, ".assistant:not([aria-busy]) .body", "friend")
    assert not engine.steps.is_watched
    await page.get_by_role("button", name="Look inside").click()
    await shows(page, "#inside", "blocks in use")
    assert engine.steps.is_watched
    assert await page.evaluate("document.activeElement.id") == "inside-title"
    await page.locator("#inside").get_by_role("button", name="Close").click()
    await page.locator("#inside").wait_for(state="detached")
    await ask(page, "And?")
    await page.locator(".assistant:not([aria-busy]) .body", has_text="friend").nth(1).wait_for()
    assert not engine.steps.is_watched


async def test_steps_and_blocks_are_drawn_and_in_the_table(page: Page, engine: FakeEngine) -> None:
    engine.scheduler.add(Sequence("somebody", tuple(range(9)), SamplingParams(max_tokens=4), 0))
    engine.scheduler.schedule()
    await page.get_by_role("button", name="Look inside").click()
    await shows(page, "#inside", "3 of 8 blocks in use")
    await drawn(page, "blocks-0", 3)
    await shows(page, ".inside-heaps", "VRAM")
    for step in range(3):
        note_step(engine, step, "a", "b", "c", hybrid=step == 2)
    await page.locator(".inside-table summary").click()
    rows = page.locator(".inside-table tbody tr")
    await rows.nth(2).wait_for()
    assert await rows.first.locator("td").all_inner_texts() == [
        "2",
        "2",
        "3",
        await rows.first.locator("td").nth(3).inner_text(),
        "1.0",
    ]
    assert await number(page, "Answers") == "1"
    await shows(page, "#inside", "Host · GPU · Device that attends · Websocket")


async def test_what_is_paused_stays_is_gone_back_in_and_saved(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    await page.get_by_role("button", name="Look inside").click()
    await shows(page, "#inside", "blocks in use")
    await page.locator(".inside-table summary").click()
    note_step(engine, 1, "a")
    rows = page.locator(".inside-table tbody tr")
    await rows.first.wait_for()
    await page.locator("#inside-pause").click()
    note_step(engine, 2, "a")
    slider = page.get_by_label("At the pause")
    await slider.focus()
    await slider.press("ArrowLeft")
    await shows(page, ".inside-scrub", "0.1 s before the pause")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save for Perfetto").click()
    file = tmp_path / "steps.json"
    await (await download.value).save_as(file)
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert "step 1" in names and "step 2" not in names
    await page.get_by_role("button", name="Go on").click()
    await rows.nth(1).wait_for()


async def test_a_phone_has_it_as_a_sheet(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.get_by_role("button", name="Look inside").click()
    await shows(page, "#inside", "blocks in use")
    box = await page.locator("#inside").bounding_box()
    assert box is not None
    assert (box["x"], box["width"]) == (0, 390)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_eight_answers_of_a_model_share_steps(browser: Browser) -> None:
    with Instance.create() as instance:
        device = choose(instance)
    config = EngineConfig(device=str(device.index), max_context=256, max_num_seqs=8, validation=VALIDATION)
    async with Engine.open("demo", config=config) as engine, serving(engine) as served:
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.goto(served.url)
        await page.get_by_role("button", name="Look inside").click()
        await page.locator("#ask-eight:enabled").click()
        await page.locator(".eight-parts li.done").nth(7).wait_for(timeout=120_000)
        await page.locator("#inside-pause").click()
        steps = await page.evaluate("document.getElementById('inside-steps').dataset.drawn")
        lanes = await page.evaluate("document.getElementById('inside-lanes').dataset.drawn")
        assert int(lanes) > int(steps) > 0
        await page.locator(".inside-table summary").click()
        written = await page.locator(".inside-table tbody td:nth-child(2)").all_inner_texts()
        assert max(map(int, written)) > 1
        await page.close()
