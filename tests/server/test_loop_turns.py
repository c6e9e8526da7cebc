"""However many connections an address has, one of them acts in each turn of the event loop."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from unicorn_async.server.loop_turns import LoopTurns


async def test_of_each_address_one_acts_at_a_time() -> None:
    turns, acted = LoopTurns(), list[str]()
    for name in ("a1", "a2", "b1", "a3", "b2"):
        turns.take(name[0], lambda name=name: acted.append(name))  # type: ignore[misc]
    assert acted == ["a1", "b1"]
    await asyncio.sleep(0)
    assert acted[2:] == ["a2", "b2"]
    turns.take("a", lambda: acted.append("a4"))
    turns.take("c", lambda: acted.append("c1"))
    assert acted[4:] == ["c1"]
    await asyncio.sleep(0)
    assert acted[5:] == ["a3"]
    await asyncio.sleep(0)
    assert acted[6:] == ["a4"]
    await asyncio.sleep(0)
    turns.take("a", lambda: acted.append("a5"))
    assert acted[7:] == ["a5"]


async def test_one_that_fails_takes_no_other_along() -> None:
    turns, acted, told = LoopTurns(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    failure = ValueError("a connection's own fault")

    def fail() -> None:
        raise failure

    for address in ("a", "b", "c"):
        turns.take(address, lambda address=address: acted.append(address))  # type: ignore[misc]
    turns.take("a", fail)
    turns.take("b", lambda: acted.append("b again"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert acted == ["a", "b", "c", "b again"]
    assert told == [failure]


async def test_each_acts_outside_of_the_request_that_made_room_for_it() -> None:
    request = ContextVar("request", default="none")
    turns, acted = LoopTurns(), list[tuple[str, str]]()

    def act(name: str) -> None:
        acted.append((name, request.get()))

    def act_within() -> None:
        act("a3")
        turns.take("b", lambda: act("b"))
        asyncio.get_running_loop().call_soon(act, "a3's own")

    request.set("a's")
    turns.take("a", lambda: act("a1"))
    turns.take("a", lambda: act("a2"))
    turns.take("a", act_within)
    for _ in range(4):
        await asyncio.sleep(0)
    assert acted == [(name, "none") for name in ("a1", "a2", "a3", "b", "a3's own")]
