"""What answers look like: programs, formulas, reasoning, what is said of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.web.chromium import CHROMIUM, ask, becomes, shows
from unicorn_async.engine.types import FinishReason, Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.server.fake_engine import FakeEngine

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
ANSWER = "Look:\n\n```python\nimport os  # it\n```\n\n$$\\frac{a}{b}$$\n\nand \\(x^2\\), not \\(\\frac{\\).\n\nThe end"


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, engine: FakeEngine) -> AsyncIterator[Page]:
    async with serving(engine) as served:
        page = await browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        await page.goto(served.url)
        yield page
        await page.close()
        assert problems == []


def tokens(*texts: str) -> list[Token]:
    """Return a script of these texts."""
    last = Token(99, "", finish_reason=FinishReason.STOP)
    return [*(Token(index, text) for index, text in enumerate(texts)), last]


async def test_programs_have_colours_and_formulas_are_typeset(page: Page, engine: FakeEngine) -> None:
    files: list[str] = []
    page.on("request", lambda request: files.append(request.url.rpartition("/")[2]))
    await ask(page, "Hi")
    await shows(page, ".assistant:not([aria-busy]) .body", "Hello there, friend")
    assert not any(name.startswith(("highlight", "formula")) for name in files)
    engine.script = tokens(*ANSWER)
    await ask(page, "And now?")
    await shows(page, ".assistant:not([aria-busy]) .body", "The end")
    await page.locator(".code-keyword", has_text="import").wait_for()
    await page.locator(".formula.display mfrac").wait_for()
    await page.locator("p .formula msup").wait_for()
    await page.locator(".formula.source").wait_for()
    assert await page.locator(".formula.source").inner_text() == "\\frac{"
    assert await page.locator("pre code").inner_text() == "import os  # it"
    assert sum(name.startswith(("highlight", "formula")) for name in files) == 2


async def test_what_is_selected_in_a_program_stays_when_its_colours_come(page: Page, engine: FakeEngine) -> None:
    engine.script = tokens("```python\nimport os  # it\n", "```\n\nThe end")
    engine.hold[1] = asyncio.Event()
    await ask(page, "Hi")
    await shows(page, ".assistant pre code", "import os")
    await page.evaluate(
        """() => {
            const text = document.querySelector('.assistant pre code').firstChild
            getSelection().setBaseAndExtent(text, 12, text, 4)
        }"""
    )
    engine.hold[1].set()
    await page.locator(".code-keyword", has_text="import").wait_for()
    assert await page.evaluate("String(getSelection())") == "rt os  #"


@pytest.mark.parametrize("formula", ["$$x = {}$$", "A line of it \\(x = {}\\) and more"])
async def test_a_formula_that_is_too_wide_scrolls_by_itself_and_by_keyboard(
    page: Page, engine: FakeEngine, formula: str
) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    engine.script = tokens(formula.format("+".join(f"\\frac{{a_{index}}}{{b}}" for index in range(60))))
    await ask(page, "Hi")
    await page.locator(".formula mfrac").nth(59).wait_for()
    wide = page.get_by_role("group", name="Formula")
    await wide.focus()
    await page.keyboard.press("ArrowRight")
    await becomes(page, "document.activeElement.scrollLeft > 0")
    assert await page.evaluate("scroller.scrollWidth") <= 390


async def test_text_that_is_made_to_stop_the_page_does_not(page: Page, engine: FakeEngine) -> None:
    cells = "\\\\".join(["&".join("1" * 40)] * 25)
    texts = [
        "*a **b " * 4600 + "core" + " c** d*" * 4600,
        *[f"$$\\begin{{matrix}}{cells}\\end{{matrix}}$$"] * 30,
        "$\\$" * 10_000,
        "$$a\n" * 10_000,
        "```ini\n" + "a." * 24_000 + "\n```",
        "```ini\n" + "a.b.c.d\n" * 6000 + "```",
        "```python\n" + "f'{(" * 400 + "\n" + "[" * 1500 + "\n```",
        "> " * 5000 + "deep",
        "The end",
    ]
    engine.script = tokens("\n\n".join(texts))
    await ask(page, "Hi")
    await page.locator(".assistant:not([aria-busy]) .body", has_text="The end").wait_for(timeout=120_000)
    assert await page.locator(".formula.display").count() >= 30
    assert await page.locator(".code").count() == 3
    await ask(page, "And now?")
    await shows(page, ".note.problem", "a context of 1000 has no room")  # so the page is still there


async def test_reasoning_is_folded_and_not_sent_again(page: Page, engine: FakeEngine) -> None:
    engine.script = tokens("<think>", "\nSeventeen and ", "twenty-five.", "\n</think>", "\n\n", "42")
    engine.hold[2] = asyncio.Event()
    await ask(page, "What is 17 + 25?")
    await shows(page, ".reasoning summary", "Thinking")
    assert await page.locator(".reasoning .body").inner_text() == ""
    await page.locator(".reasoning summary").click()
    await shows(page, ".reasoning .body", "Seventeen and")
    engine.hold[2].set()
    await shows(page, ".reasoning summary", "Thought for")
    assert await page.locator(".reasoning .body").inner_text() == "Seventeen and twenty-five."
    assert await page.locator(".assistant:not([aria-busy]) > .body").inner_text() == "42"
    await ask(page, "Sure?")
    await page.locator(".assistant:not([aria-busy])").nth(1).wait_for()
    said = [message.content for message in engine.fake_tokenizer.conversations[-1]]
    assert said == ["What is 17 + 25?", "42", "Sure?"]


async def test_an_answer_that_was_stopped_while_it_thought_is_none(page: Page, engine: FakeEngine) -> None:
    engine.script = tokens("<think>", "Hm.", "Hm.")
    engine.hold[2] = asyncio.Event()
    await ask(page, "First")
    await shows(page, ".reasoning summary", "Thinking")
    await page.get_by_role("button", name="Stop").click()
    await shows(page, ".assistant .note", "Stopped")
    await shows(page, ".reasoning summary", "Thoughts")
    engine.script, engine.hold = tokens("Yes."), {}
    await ask(page, "Second")
    await shows(page, ".assistant:not([aria-busy]) .body", "Yes.")
    assert [message.content for message in engine.fake_tokenizer.conversations[-1]] == ["Second"]


async def test_an_answer_tells_its_tokens_and_when_the_first_came(page: Page) -> None:
    await ask(page, "Hi")
    await shows(page, ".assistant .rate", "4 tokens")
    assert "first after" in await page.locator(".assistant .rate").inner_text()
