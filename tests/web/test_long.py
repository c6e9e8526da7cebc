"""Long answers and long conversations: what is finished is rendered once, and stays as the reader has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.web.chromium import CHROMIUM, ask, becomes
from tests.web.made_up_server import MadeUpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
NUM_TOKENS = 32_000
TOKEN_CHARS = 4
BLOCKS = (
    "A paragraph with **stress**, `code` and a [link](https://example.org).\n\n- a point\n- another one\n\n"
    "```python\nfor index in range(10):\n    print(index)\n```\n\n"
)
# Notes the parts that others follow, and how many of these go away again.
WATCH = """(selector) => {
    const body = document.querySelector('.assistant .body')
    const finished = new Set()
    globalThis.watched = { finished, gone: 0 }
    const note = () => {
        const parts = body.querySelectorAll(selector)
        for (let at = parts.length - 3; at >= 0 && !finished.has(parts[at]); at--) finished.add(parts[at])
    }
    new MutationObserver((records) => {
        for (const { removedNodes } of records)
            for (const node of removedNodes) if (finished.has(node)) globalThis.watched.gone += 1
        note()
    }).observe(body, { childList: true, subtree: true, characterData: true })
}"""
AT_REST = """new Promise((done) => {
    let place = scroller.scrollTop, frames = 0
    const look = () => {
        frames = scroller.scrollTop === place ? frames + 1 : 0
        place = scroller.scrollTop
        if (frames < 30) requestAnimationFrame(look)
        else done()
    }
    look()
})"""
SELECT = """() => {
    const texts = document.createTreeWalker(document.querySelector('.assistant .body'), NodeFilter.SHOW_TEXT)
    texts.nextNode()
    getSelection().setBaseAndExtent(texts.currentNode, 1, texts.currentNode, 5)
    return String(getSelection())
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    await page.close()
    assert problems == []


def text_of(unit: str) -> str:
    """Return a text of 32,000 tokens."""
    chars = NUM_TOKENS * TOKEN_CHARS
    return (unit * (chars // len(unit) + 1))[:chars]


@pytest.mark.parametrize(
    ("unit", "selector"),
    [
        pytest.param(BLOCKS, ":scope > *", id="blocks"),
        pytest.param("- an item of some words\n", "li", id="list"),
        pytest.param("some *words* and **others** of one paragraph, ", "em", id="paragraph"),
    ],
)
async def test_each_part_of_a_long_answer_is_rendered_once(page: Page, unit: str, selector: str) -> None:
    async with serving(FakeEngine()) as served:
        server = await MadeUpServer.of(page)
        await page.goto(served.url)
        await ask(page, "Go on")
        await server.begin()
        text = text_of(unit)
        server.say(text[:600])
        await page.locator(".assistant .body [dir]").first.wait_for()
        await page.evaluate(WATCH, selector)
        selected = await page.evaluate(SELECT)
        assert len(selected) == 4
        for at in range(600, len(text), 40 * TOKEN_CHARS):
            server.say(text[at : at + 40 * TOKEN_CHARS])
        server.end()
        await page.locator(".assistant:not([aria-busy])").wait_for(timeout=120_000)
        finished, gone = await page.evaluate("[watched.finished.size, watched.gone]")
        assert finished == await page.evaluate(
            "(selector) => document.querySelectorAll(`.assistant .body ${selector.replace(':scope ', '')}`).length - 2",
            selector,
        )
        assert gone == 0
        assert await page.evaluate("String(getSelection())") == selected


async def test_who_reads_in_a_long_answer_is_left_there_while_it_grows(page: Page) -> None:
    async with serving(FakeEngine()) as served:
        server = await MadeUpServer.of(page)
        await page.goto(served.url)
        await ask(page, "Go on")
        await server.begin()
        server.say(BLOCKS * 100)
        at_end = "scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 2"
        await becomes(page, f"scroller.scrollTop > 1000 && {at_end}")
        await page.mouse.move(600, 400)
        await page.mouse.wheel(0, -1500)
        await becomes(page, f"!({at_end})")
        await page.evaluate(AT_REST)
        place = await page.evaluate("scroller.scrollTop")
        server.say(BLOCKS * 20)
        server.end()
        await page.locator(".assistant:not([aria-busy])").wait_for()
        assert await page.evaluate("scroller.scrollTop") == place


async def test_a_conversation_of_200_messages_scrolls_and_renders_none_of_them_again(
    page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "chats.json"
    file.write_text(conversation(200), encoding="utf-8")
    async with serving(FakeEngine()) as served:
        server = await MadeUpServer.of(page)
        await page.goto(served.url)
        await page.locator("#chats-button").click()
        await page.locator("#chats-import").set_input_files(file)
        await page.locator("#chats-list .name", has_text="long").first.click()
        await page.locator(".assistant").nth(99).wait_for()
        await page.locator(".code-keyword").nth(99).wait_for()
        await page.evaluate(
            """() => {
                globalThis.changes = 0
                const bodies = document.querySelectorAll('.body')
                const observer = new MutationObserver((records) => { globalThis.changes += records.length })
                const all = { childList: true, subtree: true, characterData: true }
                for (const body of bodies) observer.observe(body, all)
            }"""
        )
        assert await page.evaluate("scroller.scrollHeight") > 200 * 50
        await page.keyboard.press("Tab")
        await page.mouse.move(600, 400)
        await page.mouse.wheel(0, -1_000_000)
        await becomes(page, "scroller.scrollTop === 0")
        await page.mouse.wheel(0, 1_000_000)
        await becomes(page, "scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 2")
        await ask(page, "And now?")
        await server.begin()
        for word in ("One ", "more ", "answer."):
            server.say(word)
        server.end()
        await page.locator(".assistant:not([aria-busy]) .body", has_text="One more answer.").wait_for()
        assert await page.locator(".message").count() == 202
        assert await page.evaluate("changes") == 0


def conversation(num_messages: int) -> str:
    """Return a file of a conversation that the page reads."""
    made = [
        {
            "id": str(index),
            "parent": str(index - 1) if index else None,
            "role": "assistant" if index % 2 else "user",
            "text": BLOCKS if index % 2 else f"Question {index}?",
            "state": "done",
            "created": index,
        }
        for index in range(num_messages)
    ]
    chat = {"title": "long", "created": 0, "changed": 0, "draft": "", "leaf": made[-1]["id"], "start": None}
    return json.dumps({"format": "unicorn-chat", "version": 1, "conversations": [chat | {"messages": made}]})
