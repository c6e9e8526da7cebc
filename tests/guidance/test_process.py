"""The process that follows grammars: answers in any order, nothing kept of what has ended, an end that is told."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import GrammarError, GrammarLostError
from unicorn_async.grammar import Grammar
from unicorn_async.guidance.matchers import Matchers
from unicorn_async.guidance.messages import Advance, Begin, Check, End
from unicorn_async.guidance.process import GuidanceProcess

from .test_matchers import made_vocabulary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def process() -> AsyncIterator[GuidanceProcess]:
    made = await GuidanceProcess.start(made_vocabulary())
    yield made
    await made.close()
    assert made.has_ended


async def test_it_says_what_matchers_in_this_process_say(process: GuidanceProcess) -> None:
    here, grammars = Matchers(made_vocabulary()), [Grammar.regex("[ab]{3}x"), Grammar.choice(["abc", "abd"])]
    masks = await asyncio.gather(*(process.ask(Begin(key, grammar)) for key, grammar in enumerate(grammars)))
    assert masks == [here.open(key, grammar) for key, grammar in enumerate(grammars)]
    for byte in b"ab":
        masks = await asyncio.gather(*(process.ask(Advance(key, byte)) for key in range(2)))
        assert masks == [here.advance(key, byte) for key in range(2)]


async def test_what_is_wrong_is_said_and_the_next_is_answered(process: GuidanceProcess) -> None:
    wrong, right = process.ask(Check(Grammar.regex("("))), process.ask(Check(Grammar.regex("a")))
    with pytest.raises(GrammarError, match="regex"):
        await wrong
    assert await right is None


async def test_an_answer_that_ends_before_its_grammar_is_compiled_is_forgotten(process: GuidanceProcess) -> None:
    beginning, ending = process.ask(Begin(1, Grammar.json_object())), process.ask(End(1))
    beginning.cancel()
    await ending
    with pytest.raises(GrammarError, match="has ended"):
        await process.ask(Advance(1, ord("{")))


async def test_its_end_is_told_to_who_waits_and_who_asks_later(
    process: GuidanceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = process.ask(Begin(1, Grammar.json_object()))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(GrammarLostError):
        await waiting
    with pytest.raises(GrammarLostError):
        await process.ask(End(1))
    assert "has ended (-9)" in caplog.text


async def test_a_vocabulary_without_an_end_is_told_to_everybody() -> None:
    process = await GuidanceProcess.start(made_vocabulary()._replace(eos_token_ids=()))
    for _ in range(2):
        with pytest.raises(GrammarError, match="no token that ends an answer"):
            await process.ask(Check(Grammar.json_object()))
    await process.close()


async def test_whatever_goes_wrong_with_an_answer_is_told_and_others_go_on(process: GuidanceProcess) -> None:
    await process.ask(Begin(1, Grammar.regex("[ab]+")))
    async with asyncio.timeout(30):
        with pytest.raises(GrammarError, match=r"can't be followed \(OverflowError\)"):
            await process.ask(Advance(1, 1 << 70))
        assert await process.ask(Begin(2, Grammar.regex("[ab]+")))


async def test_who_waits_is_told_where_what_it_says_is_not_understood(
    process: GuidanceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(data: bytes) -> object:
        raise ValueError("not a message")

    monkeypatch.setattr("unicorn_async.guidance.process.pickle.loads", broken)
    async with asyncio.timeout(30):
        with pytest.raises(GrammarLostError):
            await process.ask(Begin(1, Grammar.json_object()))
    assert process.has_ended
    assert "is not understood" in caplog.text
