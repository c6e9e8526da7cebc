"""Requests of programs that people have, as these send them: each is answered in a form that the programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

if TYPE_CHECKING:
    from tests.server.conftest import Served

FOLDER = Path(__file__).parent / "clients"  # recorded from openai-agents 0.24, langchain-openai 1.7, litellm 1.110
WHOLE = {"/chat/completions": ChatCompletion, "/completions": Completion, "/responses": Response}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def events(text: str) -> list[str]:
    """What each server-sent event says."""
    lines = [line for line in text.split("\n") if line and not line.startswith((":", "event: "))]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def check_chat_stream(body: dict[str, Any], said: list[str]) -> None:
    assert said[-1] == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate_json(event, strict=True) for event in said[:-1]]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "Hello there, friend"
    wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    assert (chunks[-1].usage is not None) is wants_usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def check_responses_stream(said: list[str]) -> None:
    found = [EVENTS.validate_json(event) for event in said]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert found[-1].type == "response.completed"
    assert found[-1].response.output_text == "Hello there, friend"


@pytest.mark.parametrize("client", sorted(path.stem for path in FOLDER.glob("*.json")))
async def test_requests_are_answered_as_their_client_reads_it(served: Served, client: str) -> None:
    requests = json.loads((FOLDER / f"{client}.json").read_text())
    assert len(requests) > 8
    async with httpx.AsyncClient(base_url=f"{served.url}/v1") as http:
        assert (await http.get("/models")).json()["data"][0]["id"] == "fake-model"
        for request in requests:
            path, body = request["path"], request["body"] | {"model": "fake-model"}
            answer = await http.post(path, json=body)
            assert answer.status_code == 200, (request["name"], answer.text)
            if not body.get("stream"):
                WHOLE[path].model_validate_json(answer.text)
            elif path == "/responses":
                check_responses_stream(events(answer.text))
            else:
                check_chat_stream(body, events(answer.text))
