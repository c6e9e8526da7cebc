"""Whose grammar is compiled when, and what stays compiled: clients take turns, and nobody waits without bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from unicorn_async.client_turns import TurnBounds
from unicorn_async.errors import GrammarBusyError, GrammarError, GrammarLostError, QueueFullError
from unicorn_async.grammar import Grammar
from unicorn_async.guidance.follower import GrammarSlowError
from unicorn_async.guidance.followers import Followers
from unicorn_async.guidance.process import GuidanceProcess

from .test_matchers import made_vocabulary
from .test_process import ENDLESS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Copy:
    """A process that compiles when the test lets it."""

    def __init__(self, maker: Maker) -> None:
        self.num_bytes = maker.num_bytes
        self.has_ended = False
        self._maker = maker

    async def compile(self, grammar: Grammar, *, is_short: bool) -> None:
        self._maker.compiled.append((grammar.source, is_short))
        if grammar.source.startswith("slow"):
            if is_short:
                raise GrammarSlowError
            await self._maker.may_end.wait()
        elif grammar.source.startswith("wrong"):
            raise GrammarError("it is wrong")

    def close(self) -> None:
        self.has_ended = True


class Maker:
    """In place of the process that makes copies of itself."""

    def __init__(self) -> None:
        self.num_bytes = 1 << 20
        self.copies: list[Copy] = []
        self.compiled: list[tuple[str, bool]] = []
        self.may_end = asyncio.Event()

    async def copy(self) -> Copy:
        self.copies.append(Copy(self))
        return self.copies[-1]


@pytest.fixture
async def maker() -> Maker:
    return Maker()


@pytest.fixture
async def followers(maker: Maker) -> AsyncIterator[Followers]:
    made = Followers(maker.copy)  # type: ignore[arg-type]
    yield made
    await made.close()
    assert all(copy.has_ended for copy in maker.copies)


async def checked(followers: Followers, source: str, client: str) -> None:
    followers.release(await followers.hold(Grammar.regex(source), client))


async def turns_of_the_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_clients_slow_grammars_hold_up_neither_quick_ones_nor_those_of_others_that_are_slow(
    followers: Followers, maker: Maker
) -> None:
    slow = [asyncio.create_task(checked(followers, f"slow{n}", "one")) for n in range(16)]
    await turns_of_the_loop()
    await checked(followers, "quick", "other")
    assert not any(task.done() for task in slow)
    slow.append(asyncio.create_task(checked(followers, "slow of another", "other")))
    await turns_of_the_loop()
    maker.compiled.clear()
    maker.may_end.set()
    await asyncio.gather(*slow)
    assert ("slow of another", False) in maker.compiled[:2]


async def test_what_nobody_waits_for_any_more_is_dropped_and_its_turn_goes_on(
    followers: Followers, maker: Maker
) -> None:
    slow = [asyncio.create_task(checked(followers, f"slow{n}", "one")) for n in range(8)]
    await turns_of_the_loop()
    for task in slow[:7]:
        task.cancel()
    await turns_of_the_loop()
    assert maker.compiled[-1] == ("slow7", False)
    assert sum(not copy.has_ended for copy in maker.copies) == 1
    maker.may_end.set()
    await slow[7]


async def test_who_asks_for_the_same_waits_for_the_same_and_has_it_when_another_goes(
    followers: Followers, maker: Maker
) -> None:
    first, second = (asyncio.create_task(checked(followers, "slow", client)) for client in "ab")
    await turns_of_the_loop()
    first.cancel()
    maker.may_end.set()
    await second
    await checked(followers, "slow", "c")
    assert maker.compiled == [("slow", True), ("slow", False)]


async def test_what_is_compiled_stays_within_bounds_but_where_answers_follow_it(
    followers: Followers, maker: Maker
) -> None:
    held = await followers.hold(Grammar.regex("held"), "a")
    for number in range(40):
        await checked(followers, f"number {number}", "a")
    assert sum(not copy.has_ended for copy in maker.copies) == 33
    maker.num_bytes = 200 << 20
    for number in range(3):
        await checked(followers, f"large {number}", "a")
    assert [copy.has_ended for copy in maker.copies[-3:]] == [True, True, False]
    maker.num_bytes = 4 << 30
    with pytest.raises(QueueFullError, match="4096 MiB"):
        await checked(followers, "enormous", "a")
    assert not held.follower.has_ended
    followers.release(held)


async def test_what_is_wrong_or_has_ended_is_compiled_anew(followers: Followers, maker: Maker) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match="it is wrong"):
            await checked(followers, "wrong", "a")
        await checked(followers, "right", "a")
        maker.copies[-1].has_ended = True
    assert maker.compiled == [("wrong", True), ("right", True)] * 2


async def test_a_grammar_whose_turn_does_not_come_is_told(
    monkeypatch: pytest.MonkeyPatch, maker: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("unicorn_async.guidance.followers.TURNS", TurnBounds(0, 1, 1, 0.0))
    followers = Followers(maker.copy)  # type: ignore[arg-type]
    with pytest.raises(GrammarBusyError, match="did not come within 0 s"):
        await followers.hold(Grammar.regex("a"), "anna")
    assert "a grammar of anna: other grammars" in caplog.text
    await followers.close()


async def test_the_limit_of_time_is_told_and_others_are_compiled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_async.guidance.follower.LONG_SECONDS", 0.3)
    process = await GuidanceProcess.start(made_vocabulary())
    followers = Followers(process.copy)
    slow = [asyncio.create_task(followers.hold(ENDLESS, "one"))]
    followers.release(await followers.hold(Grammar.json_object(), "two"))
    with pytest.raises(GrammarError, match="more than 5 s of the processor"):
        await slow[0]
    await followers.close()
    await process.close()
    with pytest.raises(GrammarLostError):
        await process.copy()
