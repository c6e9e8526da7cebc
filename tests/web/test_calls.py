"""Answers that call functions or are JSON that was asked for, with events as the Responses API has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.web.axe import needs_axe, violations
from tests.web.chromium import CHROMIUM, ask, shows
from tests.web.made_up_server import MadeUpServer
from tests.web.test_kept_data import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
ITEM: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": ""}
ARGUMENTS = '{"city":"<b>Ulm</b>","days":12345678901234567890}'
SHOWN = '{\n  "city": "<b>Ulm</b>",\n  "days": 12345678901234567890\n}'


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    page = await browser.new_page(viewport={"width": 390, "height": 844})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    await page.close()
    assert [problem for problem in problems if "Failed to load resource" not in problem] == []


@pytest_asyncio.fixture(loop_scope="session")
async def server(page: Page) -> AsyncIterator[MadeUpServer]:
    """The page's server, and the page open."""
    async with serving(FakeEngine()) as served:
        made = await MadeUpServer.of(page)
        await page.goto(served.url)
        yield made


def call(server: MadeUpServer, *pieces: str, name: str = "weather", number: int = 1) -> None:
    """Begin a call whose arguments come in pieces."""
    item = ITEM | {"id": f"fc_{number}", "name": name}
    server.send("response.output_item.added", output_index=number, item=item | {"status": "in_progress"})
    for piece in pieces:
        server.send("response.function_call_arguments.delta", item_id=item["id"], output_index=number, delta=piece)


def end_call(server: MadeUpServer, arguments: str, *, name: str = "weather", number: int = 1) -> None:
    item = ITEM | {"id": f"fc_{number}", "name": name, "arguments": arguments, "status": "completed"}
    done = {"item_id": item["id"], "output_index": number, "name": name, "arguments": arguments}
    server.send("response.function_call_arguments.done", **done)
    server.send("response.output_item.done", output_index=number, item=item)


async def test_a_call_is_folded_and_its_arguments_are_shown_as_they_come(page: Page, server: MadeUpServer) -> None:
    await ask(page, "What will the weather be?")
    await server.begin()
    call(server, ARGUMENTS[:8])
    await shows(page, ".assistant[aria-busy] .call summary", "Calls weather")
    assert await page.locator(".call pre").count() == 0
    await page.locator(".call summary").click()
    await shows(page, ".call pre", ARGUMENTS[:8])
    code = await page.locator(".call code").element_handle()
    server.send("response.function_call_arguments.delta", item_id="fc_1", output_index=1, delta=ARGUMENTS[8:20])
    await shows(page, ".call pre", ARGUMENTS[:20])
    assert code is not None and await code.evaluate("(code) => code.isConnected")
    end_call(server, ARGUMENTS)
    call(server, "{}", name="time", number=2)
    end_call(server, "{}", name="time", number=2)
    server.end()
    await page.locator(".assistant:not([aria-busy]) .call").nth(1).wait_for()
    await page.locator(".call .code-attr").first.wait_for()
    assert await page.locator(".call code").inner_text() == SHOWN
    assert await page.locator(".call b").count() == 0
    assert await page.locator(".call summary").all_inner_texts() == ["Calls weather", "Calls time"]
    await shows(page, ".note", "This page runs no functions")
    assert await page.get_by_text("Not answered").count() == 0
    assert await page.get_by_text("is empty").count() == 0
    assert await page.evaluate("scroller.scrollWidth") <= 390


async def test_a_call_is_kept_and_not_sent_again(page: Page, server: MadeUpServer) -> None:
    await ask(page, "What will the weather be?")
    await server.begin()
    call(server, ARGUMENTS)
    end_call(server, ARGUMENTS)
    server.end()
    await shows(page, ".assistant:not([aria-busy]) .call summary", "Calls weather")
    await until(page, lambda _, messages: [message["state"] for message in messages] == ["done", "done"])
    await page.reload()
    await page.locator(".call summary").click()
    await shows(page, ".call code", '"city": "<b>Ulm</b>"')
    await ask(page, "And now?")
    asked = await server.begin()
    assert asked["input"] == [{"role": "user", "content": "And now?"}]
    server.say("Fine.")
    server.end()
    await shows(page, ".assistant:not([aria-busy]) .body", "Fine.")


async def test_text_and_a_call_stand_in_one_answer(page: Page, server: MadeUpServer) -> None:
    await ask(page, "What will the weather be?")
    await server.begin()
    server.say("Let me *see*.")
    call(server, ARGUMENTS[:9])
    server.end(status="incomplete")
    await shows(page, ".assistant:not([aria-busy]) > .body em", "see")
    await page.locator(".call summary").click()
    await shows(page, ".call code", ARGUMENTS[:9])


@needs_axe
async def test_axe_finds_nothing_in_a_call(page: Page, server: MadeUpServer) -> None:
    await ask(page, "What will the weather be?")
    await server.begin()
    call(server, ARGUMENTS)
    end_call(server, ARGUMENTS)
    server.end()
    await shows(page, ".note", "This page runs no functions")
    await page.locator(".call summary").click()
    await page.locator(".call .code-attr").first.wait_for()
    assert await violations(page) == []


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_an_answer_in_json_is_a_program_and_no_markdown(page: Page, server: MadeUpServer, kind: str) -> None:
    await ask(page, "As JSON, please")
    await server.begin(text={"format": {"type": kind}})
    server.say('{"a": "**no stress**", ')
    await shows(page, ".assistant[aria-busy] code", '{"a": "**no stress**"')
    server.say('"b": [1, 2]}')
    server.end()
    await page.locator(".assistant:not([aria-busy]) .code-attr").first.wait_for()
    text = '{\n  "a": "**no stress**",\n  "b": [\n    1,\n    2\n  ]\n}'
    assert await page.locator(".assistant code").inner_text() == text
    assert await page.locator(".assistant strong").count() == 0
    await until(page, lambda _, messages: [message["state"] for message in messages] == ["done", "done"])
    await page.reload()
    await page.locator(".assistant .code-attr").first.wait_for()
    assert await page.locator(".assistant code").inner_text() == text
