"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.messages import parse_messages
from unicorn_async.server.protocol.responses_request import parse_model, refuse_format, refuse_tool_choice
from unicorn_async.server.protocol.sampling import MAX_TOKENS, SAMPLING_FIELDS, parse_sampling, parse_top_logprobs

if TYPE_CHECKING:
    from unicorn_async.config import SamplingParams
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.tokenizer import ChatMessage

HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
REFUSED = ("audio", "function_call", "functions", "logit_bias", "moderation", "tools", "web_search_options")
USED = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "modalities",
        "model",
        "n",
        "response_format",
        "stream",
        "stream_options",
        "tool_choice",
        "top_logprobs",
    }
)
KNOWN = HARMLESS | USED | SAMPLING_FIELDS | frozenset(REFUSED)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request; `sampling.max_tokens` is not filled in, as in `ResponsesRequest`."""

    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    model: str | None = None  # as in `ResponsesRequest`


def parse_chat_request(fields: Fields, *, defaults: SamplingParams) -> ChatRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong, unknown, or asks for what is not supported.
    """
    fields.refuse_unknown(KNOWN)
    _refuse_unsupported(fields)
    options = fields.object("stream_options")
    limit = fields.integer("max_completion_tokens", 1, MAX_TOKENS)
    return ChatRequest(
        messages=parse_messages(fields),
        sampling=parse_sampling(fields, defaults, top_logprobs=_logprobs(fields)),
        max_tokens=limit if limit is not None else fields.integer("max_tokens", 1, MAX_TOKENS),
        stream=fields.boolean("stream") is True,
        include_usage=options is not None and options.boolean("include_usage") is True,
        model=parse_model(fields),
    )


def _refuse_unsupported(fields: Fields) -> None:
    for key in REFUSED:
        if fields.value(key) not in (None, [], {}, "none", "auto"):
            raise fields.unsupported(key, "not supported by this server")
    if fields.integer("n", 1, 128) not in (None, 1):
        raise fields.unsupported("n", "one answer per request; send the request again for another")
    if fields.array("modalities") not in (None, [], ["text"]):
        raise fields.unsupported("modalities", "this server answers in text alone")
    refuse_tool_choice(fields)
    refuse_format(fields, "response_format")


def _logprobs(fields: Fields) -> int | None:
    count = parse_top_logprobs(fields)
    if fields.boolean("logprobs"):
        return count or 0
    if count:
        raise fields.unsupported("top_logprobs", "needs logprobs to be true")
    return None
