"""What becomes of a conversation: where answers end early, pages are reloaded, and much is said."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.fake_engine import FakeEngine, words
from tests.web.chromium import CHROMIUM, ask, shows
from unicorn_async.engine.types import FinishReason, Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from tests.server.conftest import Served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
PROMPT = "Your message"
AT_END = """() => {
    const { scrollHeight, scrollTop, clientHeight } = document.getElementById('scroller')
    return scrollHeight - scrollTop - clientHeight < 3
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, served: Served) -> AsyncIterator[Page]:
    context = await browser.new_context()  # which the tests of two tabs open another page in
    page = await context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    await page.goto(served.url)
    yield page
    await context.close()
    assert problems == []


def said(engine: FakeEngine) -> list[str]:
    """What the model was told last."""
    return [message.content for message in engine.fake_tokenizer.conversations[-1]]


async def answered(page: Page, number: int = 1) -> None:
    await page.locator(".assistant:not([aria-busy]) .body").nth(number - 1).wait_for()


async def test_an_answer_that_was_stopped_before_its_first_word_leaves_no_question_to_send(
    page: Page, engine: FakeEngine
) -> None:
    engine.hold[0] = asyncio.Event()
    await ask(page, "First")
    await page.get_by_role("button", name="Stop").click()
    await shows(page, ".assistant .note", "Stopped")
    await shows(page, ".user .note", "Not answered")
    engine.hold.clear()
    await ask(page, "Second")
    await shows(page, ".assistant .body", "Hello there, friend")
    assert said(engine) == ["Second"]
    assert await page.locator(".user .body").all_inner_texts() == ["First", "Second"]


async def test_a_full_context_is_left_by_older_messages_and_takes_them_back(page: Page, engine: FakeEngine) -> None:
    engine.max_context = 20
    await page.reload()  # the page asks for a model's size once
    await ask(page, "one two three four")
    await answered(page)
    await shows(page, "#context", "of the context")
    await ask(page, "five six seven eight")
    await answered(page, 2)
    await shows(page, "#status", "soon older messages have to go")
    await ask(page, "nine ten")
    await shows(page, ".problem", "no room")
    await page.get_by_role("button", name="Leave out older messages").click()
    await page.locator(".assistant:not([aria-busy]) .body", has_text="Hello").nth(2).wait_for()
    assert "one two three four" not in said(engine)
    assert said(engine)[-1] == "nine ten"
    await shows(page, ".switched", "not sent any more")
    engine.max_context = 1000
    await page.get_by_role("button", name="Send it again").click()
    await ask(page, "eleven")
    await page.locator(".assistant:not([aria-busy]) .body", has_text="Hello").nth(3).wait_for()
    assert said(engine)[0] == "one two three four"


async def test_a_message_that_is_too_large_is_refused_with_its_size_and_stays(page: Page, engine: FakeEngine) -> None:
    paste = """(area, number) => {
        // Six bytes each on their way, since as many letters take a browser long to lay out.
        area.value = ('\\x01'.repeat(99) + '\\n').repeat(number)
        area.dispatchEvent(new Event('input', {bubbles: true}))
    }"""
    await page.get_by_label(PROMPT).evaluate(paste, 7_500)
    await page.locator("#send:enabled").click()
    await shows(page, "#problem", "4.5 MB; the server takes 4.2 MB")
    assert await page.get_by_label(PROMPT).evaluate("(area) => area.value.length") == 750_000
    assert await page.locator(".message").count() == 0
    await page.get_by_label(PROMPT).evaluate(paste, 0)
    await ask(page, "Hi")
    await answered(page)
    assert said(engine) == ["Hi"]


async def test_a_question_that_is_longer_than_the_context_is_shortened(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.max_context = 8
    (tmp_path / "long.txt").write_text("one two three four five six seven")
    await page.locator("#attach").set_input_files(tmp_path / "long.txt")
    await ask(page, "What is it?")
    await shows(page, ".note.problem", "this question alone is longer than the context")
    assert await page.get_by_role("button", name="Leave out older messages").count() == 0
    await page.locator(".note").get_by_role("button", name="Edit").click()
    await page.locator(".editor").get_by_role("button", name="Remove long.txt").click()
    await page.locator(".editor").get_by_role("button", name="Send").click()
    await answered(page)
    await shows(page, ".assistant .body", "Hello")
    assert said(engine) == ["What is it?"]
    await page.get_by_role("button", name="Previous version").first.click()
    await shows(page, ".user .attached", "long.txt")


async def test_a_conversation_that_is_too_large_goes_on_without_its_oldest_turns(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    turns = [
        {"role": role, "text": text, "state": "done", "created": 1}
        for index in range(4)
        for role, text in (("user", f"{index}" + "\x01" * 225_000), ("assistant", "Yes"))
    ]
    messages = [{**turn, "id": f"{n}", "parent": f"{n - 1}" if n else None} for n, turn in enumerate(turns)]
    chat = {"title": "Long", "draft": "And?", "created": 1, "changed": 1, "leaf": "7", "start": None}
    file = tmp_path / "long.json"
    content = {"format": "unicorn-chat", "version": 1, "conversations": [{**chat, "messages": messages[::-1]}]}
    file.write_text(json.dumps(content))
    await page.get_by_role("button", name="Chats").click()
    await page.locator("#chats-import").set_input_files(file)
    await page.locator("#chats-list .name", has_text="Long").click()
    await page.locator("#send:enabled").click()
    await shows(page, "#problem", "5.4 MB; the server takes 4.2 MB")
    await page.get_by_role("button", name="Leave out older messages").click()
    await shows(page, ".switched", "not sent any more")
    assert await page.get_by_label(PROMPT).input_value() == "And?"
    await page.locator("#send:enabled").click()
    await page.locator(".assistant:not([aria-busy]) .body", has_text="Hello").wait_for()
    assert [text[:1] for text in said(engine)] == ["2", "Y", "3", "Y", "A"]


async def test_what_is_wrong_with_a_file_is_told_in_the_readers_language(browser: Browser, served: Served) -> None:
    page = await browser.new_page(locale="de-DE")
    await page.goto(served.url)
    await page.get_by_role("button", name="Chats").click()
    file = {"name": "x.json", "mimeType": "application/json", "buffer": b'{"format": "unicorn-chat", "version": 9}'}
    await page.locator("#chats-import").set_input_files(files=file)  # type: ignore[arg-type]
    await shows(page, "#notice", "diese Seite kennt ihre Version 9 nicht")
    await page.close()


async def test_a_question_is_edited_and_both_ways_stay(page: Page, engine: FakeEngine) -> None:
    await ask(page, "First")
    await answered(page)
    engine.script = words("Another answer")
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("The edited message").fill("Changed")
    await page.locator(".editor").get_by_role("button", name="Send").click()
    await shows(page, ".assistant:not([aria-busy]) .body", "Another answer")
    assert said(engine) == ["Changed"]
    await shows(page, ".versions", "2 of 2")
    await page.get_by_role("button", name="Previous version").click()
    await shows(page, ".assistant .body", "Hello there, friend")
    assert await page.locator(".user .body").inner_text() == "First"


async def test_what_is_deleted_comes_back(page: Page) -> None:
    await ask(page, "First")
    await answered(page)
    await page.locator(".user").get_by_role("button", name="Delete").click()
    await page.locator("#welcome").wait_for()
    await page.get_by_role("button", name="Undo").click()
    await shows(page, ".assistant .body", "Hello there, friend")


async def test_new_chat_is_taken_back(page: Page) -> None:
    await ask(page, "First")
    await answered(page)
    await page.get_by_role("button", name="New chat").click()
    await page.locator("#welcome").wait_for()
    await page.get_by_role("button", name="Undo").click()
    await shows(page, ".user .body", "First")


async def test_conversations_are_found_renamed_deleted_and_opened(page: Page) -> None:
    for text in ("About apples", "About pears"):
        await ask(page, text)
        await answered(page)
        await page.get_by_role("button", name="New chat").click()
    await page.get_by_role("button", name="Chats").click()
    items = page.locator("#chats-list .name")
    await items.nth(1).wait_for()
    assert await items.all_inner_texts() == ["About pears", "About apples"]
    await page.get_by_label("Search conversations").fill("APPLES")
    await items.nth(1).wait_for(state="detached")
    await page.get_by_role("button", name="Rename About apples").click()
    await page.get_by_label("New title").fill("Fruit")
    await page.keyboard.press("Enter")
    await shows(page, "#chats-list .name", "Fruit")  # found by what was said in it
    await page.get_by_role("button", name="Delete Fruit").click()
    await shows(page, "#chats-dialog", "Nothing found")
    await page.locator("#chats-dialog").get_by_role("button", name="Undo").click()
    await items.filter(has_text="Fruit").click()
    await shows(page, ".user .body", "About apples")


async def test_conversations_are_written_to_a_file_and_read_from_it(page: Page, tmp_path: Path) -> None:
    await ask(page, "First")
    await answered(page)
    await page.get_by_role("button", name="Chats").click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export").click()
    file = tmp_path / "conversations.json"
    await (await download.value).save_as(file)
    assert json.loads(file.read_text())["conversations"][0]["messages"][0]["text"] == "First"
    await page.locator("#chats-import").set_input_files(file)
    await page.locator("#chats-list .name").nth(1).wait_for()
    file.write_text("{}")
    await page.locator("#chats-import").set_input_files(file)
    await shows(page, "#notice", "could not be read")


async def test_two_tabs_show_one_conversation(page: Page, served: Served, engine: FakeEngine) -> None:
    await ask(page, "First")
    await answered(page)
    other = await page.context.new_page()
    await other.goto(served.url)
    await other.get_by_role("button", name="Chats").click()
    await other.locator("#chats-list .name", has_text="First").click()
    engine.hold[1] = asyncio.Event()
    await ask(page, "Second")
    await other.locator(".assistant[aria-busy] .body", has_text="Hello").wait_for()
    await other.reload()
    await other.locator(".assistant[aria-busy] .body", has_text="Hello").wait_for()
    engine.hold[1].set()
    await other.locator(".assistant:not([aria-busy]) .body", has_text="friend").nth(1).wait_for()
    await other.close()


async def test_a_finished_block_keeps_its_selection_and_a_reader_who_scrolled_up_stays(
    page: Page, engine: FakeEngine
) -> None:
    await page.set_viewport_size({"width": 600, "height": 400})
    lines = [Token(1, "Chosen words.\n\n" + "A line.\n\n" * 40), Token(2, "Some more.\n\n" * 40), Token(3, "The end.")]
    engine.script = [*lines, Token(4, "", finish_reason=FinishReason.STOP)]
    engine.hold = {1: asyncio.Event(), 2: asyncio.Event()}
    await ask(page, "Hi")
    await page.locator(".assistant .body p").nth(39).wait_for()
    await page.wait_for_function(AT_END)
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('.assistant .body p'))")
    engine.hold[1].set()
    await page.locator(".assistant .body p").nth(79).wait_for()
    await page.wait_for_function(AT_END)
    assert await page.evaluate("getSelection().toString()") == "Chosen words."
    await page.mouse.move(300, 200)
    await page.mouse.wheel(0, -40)
    await page.wait_for_function(f"() => !({AT_END})()")
    engine.hold[2].set()
    await page.locator(".assistant:not([aria-busy]) .body", has_text="The end.").wait_for()
    assert not await page.evaluate(AT_END)
    assert await page.evaluate("getSelection().toString()") == "Chosen words."


async def test_enter_that_ends_a_composition_sends_nothing(page: Page) -> None:
    await page.get_by_label(PROMPT).fill("かな")
    await page.locator("#send:enabled").wait_for()
    for how in ({"isComposing": True}, {"keyCode": 229}):
        await page.evaluate(
            "event => document.getElementById('prompt').dispatchEvent(new KeyboardEvent('keydown', event))",
            {"key": "Enter", "bubbles": True, "cancelable": True, **how},
        )
    assert await page.locator(".message").count() == 0
    assert await page.get_by_label(PROMPT).input_value() == "かな"


async def test_a_window_of_a_few_lines_is_all_text_once_head_and_prompt_are_scrolled_away(page: Page) -> None:
    await page.set_viewport_size({"width": 320, "height": 180})  # 400 % of 1280 × 720
    for number in range(3):
        await ask(page, "Hi")
        await answered(page, number + 1)
    await page.locator(".assistant .body").nth(1).scroll_into_view_if_needed()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    for part in ("header", "footer"):
        box = await page.locator(part).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 0 or box["y"] >= 180
