"""`truncation: "auto"` leaves out as many of the oldest turns as have to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from unicorn_async.server.truncation import fitting_prompt, without_oldest
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

SYSTEM = ChatMessage("system", "be brief")
TURNS = [ChatMessage(role, f"{role[0]}{number} x x") for number in range(8) for role in ("user", "assistant")]
LAST = ChatMessage("user", "last one")


async def encode(messages: Sequence[ChatMessage]) -> list[int]:
    return [0] * sum(len(message.content.split()) for message in messages)


def test_turns_go_whole_and_the_system_stays() -> None:
    kept = without_oldest([SYSTEM, *TURNS[:4], LAST], 2)
    assert kept == [SYSTEM, LAST]
    assert without_oldest([TURNS[1], LAST], 0) == [LAST] == without_oldest([TURNS[1], SYSTEM, LAST], 0)[1:]


@pytest.mark.parametrize(
    ("max_context", "max_tokens", "length"),
    [
        (53, None, 52),  # it fits
        (52, 1, 46),  # a turn of 6 has to go: 46 + 1
        (52, None, 34),  # the answer has a quarter: 13
        (52, 40, 34),  # at most that
        (9, None, 4),  # the last turn alone
        (5, None, 4),  # as far as it can
        (4, None, 4),  # which is not enough
    ],
)
async def test_as_little_goes_as_leaves_room(max_context: int, max_tokens: int | None, length: int) -> None:
    prompt = await fitting_prompt([SYSTEM, *TURNS, LAST], encode, max_context, max_tokens)
    assert len(prompt) == length


async def test_a_conversation_goes_on_when_the_context_is_full(served: Served, engine: FakeEngine) -> None:
    engine.max_context = 30
    async with httpx.AsyncClient(base_url=served.url) as client:
        items = [{"role": message.role, "content": message.content} for message in (*TURNS, LAST)]
        body = {"instructions": "be brief", "input": items}
        refused = await client.post("/v1/responses", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        response = (await client.post("/v1/responses", json={**body, "truncation": "auto"})).json()
        assert (response["status"], response["usage"]["input_tokens"]) == ("completed", 3 + 8 + 8 + 3)
        said = [message.content for message in engine.fake_tokenizer.conversations[-1]]
        alone = {"input": "x " * 40, "truncation": "auto"}
        assert (await client.post("/v1/responses", json=alone)).json()["error"]["code"] == "context_length_exceeded"
    assert said[0] == "be brief"
