"""The Response object of OpenAI's Responses API and the state it is drawn from."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.output_items import CallItem, TextItem
from unicorn_async.tokenizer import ToolCall

if TYPE_CHECKING:
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.protocol.errors import ErrorInfo
    from unicorn_async.server.protocol.responses_request import ResponsesRequest


class ResponseStatus(Enum):
    """Where a response stands."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True)
class ResponseState:
    """A response while it is made; the encoder fills it in."""

    id: str
    model: str
    request: ResponsesRequest
    sampling: SamplingParams  # as it is used, limits filled in
    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input, that were computed before
    created_at: int = field(default_factory=lambda: int(time.time()))
    completed_at: int | None = None
    status: ResponseStatus = ResponseStatus.IN_PROGRESS
    error: ErrorInfo | None = None
    num_thought: int = 0  # of the output tokens
    items: list[TextItem | CallItem] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The answer so far, without thoughts."""
        return "".join(item.text for item in self.items if isinstance(item, TextItem) and not item.is_thought)

    @property
    def thoughts(self) -> str:
        """The thoughts so far."""
        return "".join(item.text for item in self.items if isinstance(item, TextItem) and item.is_thought)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools so far."""
        found = (item for item in self.items if isinstance(item, CallItem))
        return tuple(ToolCall(item.call_id, item.name, item.arguments) for item in found)

    def add_item(self, *, is_thought: bool = False) -> TextItem:
        """Begin an item of the output."""
        earlier = sum(isinstance(item, TextItem) and item.is_thought is is_thought for item in self.items)
        name = f"{'rs' if is_thought else 'msg'}_{self.id.removeprefix('resp_')}"
        item = TextItem(f"{name}_{earlier}" if earlier else name, is_thought)
        self.items.append(item)
        return item

    def add_call(self, name: str) -> CallItem:
        """Begin a call of a tool."""
        item = CallItem(name)
        self.items.append(item)
        return item

    def finish(self, status: ResponseStatus, error: ErrorInfo | None = None) -> None:
        """Set the final status."""
        self.status = status
        self.error = error
        self.completed_at = int(time.time()) if status is ResponseStatus.COMPLETED else None

    def to_json(self) -> dict[str, object]:
        """Return the Response object; its output and usage are there once it has ended."""
        ended = self.status is not ResponseStatus.IN_PROGRESS
        error = {"code": "server_error", "message": self.error.message} if self.error else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": self.completed_at,
            "status": self.status.value,
            "background": self.request.background,
            "error": error,
            "incomplete_details": self._incomplete_details(),
            "instructions": self.request.instructions,
            "max_output_tokens": self.request.max_output_tokens,
            "metadata": self.request.metadata,
            "model": self.model,
            "output": [item.to_json() for item in self.items] if ended else [],
            "previous_response_id": self.request.previous_response_id,
            "reasoning": {"effort": self.request.reasoning.effort, "summary": self.request.reasoning.summary},
            "store": self.request.store,
            "temperature": self.sampling.temperature,
            "text": {"format": self.request.format.shown, "verbosity": "medium"},
            "tool_choice": self.request.tools.shown_choice,
            "tools": self.request.tools.shown_tools,
            "top_logprobs": self.sampling.top_logprobs or 0,
            "top_p": self.sampling.top_p,
            "truncation": "auto" if self.request.truncate else "disabled",
            "usage": self._usage() if ended else None,
            **self.request.hints.to_json(),
        }

    def _incomplete_details(self) -> dict[str, object] | None:
        if self.status is ResponseStatus.INCOMPLETE:
            return {"reason": "max_output_tokens"}
        return None

    def _usage(self) -> dict[str, object]:
        return usage(self.input_tokens, self.cached_tokens, self.output_tokens, self.num_thought)


def usage(num_input: int, num_cached: int, num_output: int, num_thought: int) -> dict[str, object]:
    """Return how many tokens were read and written; some of the input were computed before."""
    return {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": num_thought},
        "total_tokens": num_input + num_output,
    }
