"""A replica's answer to a websocket's event comes to an end, whatever becomes of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tests.server.fake_engine import FakeEngine
from unicorn_async.ray.answers import Answers
from unicorn_async.ray.calls import Accepted, Began, LaneCall
from unicorn_async.ray.far_channel import FarChannels
from unicorn_async.server import ServerOptions
from unicorn_async.server.client import LOCAL, Client

if TYPE_CHECKING:
    import pytest


async def test_a_fault_of_the_replica_is_told_and_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(FarChannels, "_held", broken)
    answers = Answers(FakeEngine(), ServerOptions(), "one")
    call = LaneCall("connection", "lane", LOCAL, json.dumps({"type": "response.create", "input": "Hi"}))
    async with asyncio.timeout(120):
        accepted, told = [piece async for piece in answers.lane(call)]
    assert accepted == Accepted("one")
    assert json.loads(str(told))["status"] == 500
    assert "no such thing" not in str(told)


async def test_a_background_answer_is_ended_by_whose_it_is_alone() -> None:
    engine = FakeEngine()
    engine.hold[1] = asyncio.Event()
    answers = Answers(engine, ServerOptions(), "one")
    anna, ben = (Client(name, key_number=number) for number, name in enumerate(("anna", "ben"), 1))
    event = {"type": "response.create", "input": "Hi", "background": True}
    async with asyncio.timeout(120), answers.app.router.lifespan_context(answers.app):
        async for piece in answers.lane(LaneCall("connection", "lane", anna, json.dumps(event))):
            if isinstance(piece, Began):
                name = piece.response_id
                break
        await engine.called.wait()
        assert not await answers.cancel_background(name, ben)
        assert await answers.cancel_background(name, anna)
