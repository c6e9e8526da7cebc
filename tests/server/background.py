"""Answers in the background: how they are asked for, and what comes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

ASK = {"input": "Hi", "background": True}
NAME = f"resp_{'0f' * 16}"
CHOSEN = {**ASK, "response_id": NAME}
TEXT = "Hello there, friend"


def events_of(text: str) -> list[dict[str, Any]]:
    """Return what server-sent events say."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def finished(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    """Wait for the end of a background answer, and return its object."""
    response = await client.get(f"/v1/responses/{response_id}", params={"stream": "true"})
    events_of(response.text)
    found: dict[str, Any] = (await client.get(f"/v1/responses/{response_id}")).json()
    return found
