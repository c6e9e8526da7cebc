"""The body of POST /v1/responses, which is also the body of the websocket's `response.create`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.answer_format import FORMAT_FIELDS, AnswerFormat, parse_text_format
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.foreign import FOREIGN, IN_RESPONSES, refuse_foreign
from unicorn_async.server.protocol.hints import (
    RESPONSES_HINTS,
    Hints,
    check_stream_options,
    check_verbosity,
    parse_hints,
    parse_include,
)
from unicorn_async.server.protocol.messages import parse_input
from unicorn_async.server.protocol.reasoning import Reasoning, parse_reasoning
from unicorn_async.server.protocol.sampling import (
    MAX_TOKENS,
    SAMPLING_FIELDS,
    left_out,
    parse_sampling,
    parse_top_logprobs,
)
from unicorn_async.server.protocol.tools import TOOL_FIELDS, ToolRequest, parse_tools

if TYPE_CHECKING:
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.tokenizer import ChatMessage

# Would change the answer; null or empty is fine.
REFUSED = ("access_programs", "context_management", "conversation", "image", "moderation", "prompt")
USED = frozenset(
    {
        "background",
        "generate",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "model",
        "previous_response_id",
        "reasoning",
        "reasoning_format",
        "response_id",
        "store",
        "stream",
        "stream_options",
        "text",
        "top_logprobs",
        "truncation",
    }
)
KNOWN = RESPONSES_HINTS | USED | SAMPLING_FIELDS | FORMAT_FIELDS | TOOL_FIELDS | FOREIGN.keys() | frozenset(REFUSED)
MAX_PREVIOUS = 200  # characters
RESPONSE_ID = re.compile("resp_[0-9a-f]{24,64}")
INCLUDE_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A checked request.

    `messages` are its own input alone: neither the instructions nor what `previous_response_id` stands for.
    `sampling.max_tokens` is not filled in; the service derives it from `max_output_tokens` and the context's room.
    """

    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    store: bool = True
    background: bool = False  # goes on when its listener goes
    stream: bool = False
    generate: bool = True
    response_id: str | None = None  # that the client chose; None = the server does
    model: str | None = None  # that the answer has to come from; None = whichever is served
    truncate: bool = False  # leave out the oldest turns of a conversation that the context has no room for
    hints: Hints = field(default_factory=Hints)
    reasoning: Reasoning = field(default_factory=Reasoning)
    left_out: frozenset[str] = frozenset()  # sampling parameters that the model's recommendation may fill in
    format: AnswerFormat = field(default_factory=AnswerFormat)  # its grammar is among the sampling parameters
    tools: ToolRequest = field(default_factory=ToolRequest)


def parse_responses_request(fields: Fields, *, defaults: SamplingParams) -> ResponsesRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong, unknown, or asks for what is not supported.
    """
    fields.refuse_unknown(KNOWN)
    _refuse_unsupported(fields)
    previous = fields.string("previous_response_id", max_length=MAX_PREVIOUS)
    wanted = parse_text_format(fields)
    request = ResponsesRequest(
        messages=parse_input(fields),
        sampling=replace(
            parse_sampling(fields, defaults, top_logprobs=_logprobs(fields)), grammar=wanted.grammar or defaults.grammar
        ),
        instructions=fields.string("instructions"),
        max_output_tokens=fields.integer("max_output_tokens", 1, MAX_TOKENS),
        previous_response_id=previous,
        metadata=fields.metadata(),
        store=fields.boolean("store") is not False,
        background=fields.boolean("background") is True,
        stream=fields.boolean("stream") is True,
        generate=fields.boolean("generate") is not False,
        response_id=fields.string("response_id"),
        model=parse_model(fields),
        truncate=fields.choice("truncation", ("auto", "disabled")) == "auto",
        hints=parse_hints(fields),
        reasoning=parse_reasoning(fields),
        left_out=left_out(fields),
        format=wanted,
        tools=parse_tools(fields, nested=False),
    )
    if request.response_id is not None:
        _check_response_id(request, fields)
    if request.background and not request.store:
        raise fields.unsupported("background", "an answer in the background is stored, but store is false")
    if not request.messages and previous is None and request.instructions is None:
        raise ApiError("input: expected a string or an array of messages", code="missing_parameter", param="input")
    return request


def parse_model(fields: Fields) -> str | None:
    """Return the model that a request names; an empty name is none."""
    return fields.string("model") or None


def _check_response_id(request: ResponsesRequest, fields: Fields) -> None:
    if not request.background:
        raise fields.unsupported("response_id", "only an answer in the background has a name that its client chose")
    if RESPONSE_ID.fullmatch(request.response_id or "") is None:
        raise fields.wrong("response_id", "resp_ and 24 to 64 of 0-9a-f", code="invalid_value")


def _refuse_unsupported(fields: Fields) -> None:
    for key in REFUSED:
        if fields.value(key) not in (None, [], {}):
            raise fields.unsupported(key, "not supported by this server")
    text = fields.object("text")
    if text is not None:
        text.refuse_unknown(("format", "verbosity"))
        check_verbosity(text)
    refuse_foreign(fields, IN_RESPONSES)
    check_stream_options(fields, needs_stream=False)  # a websocket always streams, and does not say so


def _logprobs(fields: Fields) -> int | None:
    wanted = parse_top_logprobs(fields)
    if INCLUDE_LOGPROBS in parse_include(fields) and wanted is None:
        return 0
    return wanted
