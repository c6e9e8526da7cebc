"""Clients take turns, so many of them at a time, and the rest waits within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from unicorn_async.client_turns import ClientTurns, TurnBounds
from unicorn_async.errors import QueueFullError

if TYPE_CHECKING:
    from collections.abc import Awaitable


def turns_of(max_of_client: int = 9, max_waiting: int = 9, wait_s: float = 60.0, at_a_time: int = 1) -> ClientTurns:
    return ClientTurns("things wait", TurnBounds(at_a_time, max_of_client, max_waiting, wait_s))


async def begun(waiting: Awaitable[None]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    assert isinstance(task, asyncio.Task)
    return task


async def test_clients_take_turns_each_in_its_order() -> None:
    turns, order = turns_of(), list[str]()
    await turns.begin("anna")
    tasks = []
    for name in ("a1", "a2", "b1", "c1"):
        tasks.append(await begun(turns.begin(name[0])))
        tasks[-1].add_done_callback(lambda _, name=name: order.append(name))
    for _ in tasks:
        turns.end()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)
        tasks = [task for task in tasks if not task.done()]
    assert order == ["a1", "b1", "c1", "a2"]


async def test_who_has_too_many_is_refused_and_of_too_many_in_all_who_has_most() -> None:
    turns = turns_of(max_of_client=2, max_waiting=3)
    await turns.begin("one")
    ones = [await begun(turns.begin("one")) for _ in range(2)]
    with pytest.raises(QueueFullError, match="2 things wait already"):
        await turns.begin("one")
    others = [await begun(turns.begin(client)) for client in ("two", "three")]
    with pytest.raises(QueueFullError, match="3 things wait already"):
        await ones[1]
    for _ in (ones[0], *others):
        turns.end()
    await asyncio.gather(ones[0], *others)


async def test_a_turn_that_does_not_come_in_time_is_an_error_and_takes_none_with_it() -> None:
    turns = turns_of(wait_s=0.0)
    await turns.begin("one")
    with pytest.raises(TimeoutError):
        await turns.begin("two")
    turns.end()
    await turns.begin("two")


async def test_who_is_cancelled_takes_no_turn_with_it_not_even_one_that_came_just_now() -> None:
    turns = turns_of()
    await turns.begin("one")
    early = await begun(turns.begin("one"))
    early.cancel()
    late = await begun(turns.begin("two"))
    turns.end()
    late.cancel()
    await asyncio.wait((early, late))
    assert early.cancelled() and late.cancelled()
    async with asyncio.timeout(120):
        await turns.begin("three")
