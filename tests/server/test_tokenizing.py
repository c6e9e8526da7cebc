"""In which order conversations become token ids."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.ws_client import connected
from unicorn_async.client_turns import TurnBounds
from unicorn_async.errors import PromptTooLongError, QueueFullError
from unicorn_async.server import ServerOptions
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.tokenizing import Tokenizing
from unicorn_async.tokenizer import LONG_CHARS, ChatMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.server.conftest import ServeWith
    from tests.server.fake_engine import FakeEngine

LONG = "x" * (LONG_CHARS + 1)


class SlowTokenizer:
    """Takes for a long conversation as long as the test wants it to."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.begun: list[str] = []

    def encode_chat(
        self, messages: Sequence[ChatMessage], *, max_context: int | None = None, **others: object
    ) -> list[int]:
        text = messages[0].content
        self.begun.append(text.strip("x"))
        if text == "bad":
            raise PromptTooLongError("too long")
        if len(text) > LONG_CHARS:
            assert self.go.acquire(timeout=600)
        return [max_context or 0]


@pytest.fixture
async def tokenizing() -> AsyncIterator[Tokenizing]:
    made = Tokenizing()
    yield made
    made.close()


def begin(tokenizing: Tokenizing, slow: SlowTokenizer, text: str, client: str = "anna") -> asyncio.Task[list[int]]:
    work = partial(slow.encode_chat, [ChatMessage("user", text)], max_context=7)
    run = tokenizing.long if len(text) > LONG_CHARS else tokenizing.short
    return asyncio.create_task(run(client, work))


async def test_a_short_conversation_waits_for_no_long_one(tokenizing: Tokenizing) -> None:
    slow = SlowTokenizer()
    long = [begin(tokenizing, slow, LONG) for _ in range(5)]
    assert await begin(tokenizing, slow, "Hi") == [7]
    with pytest.raises(PromptTooLongError):
        await begin(tokenizing, slow, "bad")
    assert not any(task.done() for task in long)
    slow.go.release(5)
    assert await asyncio.gather(*long) == [[7]] * 5


async def test_clients_with_long_conversations_take_turns(tokenizing: Tokenizing) -> None:
    slow = SlowTokenizer()
    tasks = [begin(tokenizing, slow, f"a{number}{LONG}") for number in range(6)]
    tasks.append(begin(tokenizing, slow, f"b{LONG}", "ben"))
    await begin(tokenizing, slow, "Hi")
    tasks[2].cancel()

    def begun() -> list[str]:
        return [name for name in slow.begun if name != "Hi"]

    for number in range(2, 7):  # two are encoded at a time: one may end when the one whose turn came has begun
        while len(begun()) < number:
            await begin(tokenizing, slow, "Hi")
        slow.go.release()
    slow.go.release()
    await asyncio.wait(tasks)
    order = begun()
    assert sorted(order[:2]) == ["a0", "a1"]
    assert "b" in order[2:4]
    assert "a2" not in order
    assert len(order) == 6


async def test_who_goes_while_its_conversation_is_encoded_takes_no_turn_with_it(tokenizing: Tokenizing) -> None:
    slow = SlowTokenizer()
    gone = [begin(tokenizing, slow, LONG) for _ in range(2)]
    await begin(tokenizing, slow, "Hi")
    for task in gone:
        task.cancel()
    await asyncio.wait(gone)
    waits = begin(tokenizing, slow, LONG)
    await asyncio.sleep(0)
    slow.go.release(3)
    assert await waits == [7]


async def test_a_text_whose_turn_does_not_come_is_the_server_s_fault_and_one_too_many_the_client_s() -> None:
    slow, tokenizing = SlowTokenizer(), Tokenizing(TurnBounds(at_a_time=1, max_of_client=1, max_waiting=9, wait_s=60.0))
    running, waits = begin(tokenizing, slow, LONG), begin(tokenizing, slow, LONG)
    with pytest.raises(QueueFullError, match="1 texts wait to be encoded already"):
        await begin(tokenizing, slow, LONG)
    slow.go.release(2)
    assert await asyncio.gather(running, waits) == [[7], [7]]
    tokenizing.close()
    tokenizing = Tokenizing(TurnBounds(at_a_time=1, max_of_client=1, max_waiting=9, wait_s=0.0))
    running = begin(tokenizing, slow, LONG)
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="did not come within 0 s") as caught:
        await begin(tokenizing, slow, LONG)
    assert (caught.value.status, caught.value.code, caught.value.retry_s) == (503, "tokenizer_busy", 10)
    slow.go.release()
    assert await running == [7]
    tokenizing.close()


async def test_the_loop_goes_on_while_a_conversation_is_encoded(serve_with: ServeWith, engine: FakeEngine) -> None:
    slow = SlowTokenizer()
    engine.fake_tokenizer.encode_chat = slow.encode_chat  # type: ignore[method-assign, assignment]
    async with serve_with(ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        asking = asyncio.create_task(client.post("/v1/responses", json={"input": LONG}))
        while not slow.begun:
            assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/v1/responses", json={"input": "Hi"})).status_code == 200
        slow.go.release()
        assert (await asking).status_code == 200


async def test_a_server_that_ends_tells_those_whose_texts_are_encoded_still_or_wait_for_it(
    serve_with: ServeWith, engine: FakeEngine
) -> None:
    slow = SlowTokenizer()
    engine.fake_tokenizer.encode_chat = slow.encode_chat  # type: ignore[method-assign, assignment]
    async with (
        asyncio.timeout(120),
        serve_with(ServerOptions(shutdown_timeout_s=60)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
        connected(served.ws_url) as socket,
    ):
        asking = [asyncio.create_task(client.post("/v1/responses", json={"input": LONG})) for _ in range(3)]
        while len(slow.begun) < 2:
            assert (await client.get("/ready")).status_code == 200
        await socket.create(LONG)
        await socket.create("Hi")
        await socket.send({"type": "response.cancel", "response_id": "resp_none"})
        assert (await socket.receive())["status"] == 404  # so all before it are in their stream
        served.task.cancel()
        for told in [*[(await asked).json() for asked in asking], *[await socket.receive() for _ in range(2)]]:
            assert told["error"]["code"] == "engine_closed"
            assert "shutting down" in told["error"]["message"]
        slow.go.release(4)
