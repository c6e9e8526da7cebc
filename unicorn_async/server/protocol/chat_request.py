"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.answer_format import FORMAT_FIELDS, AnswerFormat, parse_response_format
from unicorn_async.server.protocol.foreign import FOREIGN, OF_CHAT, refuse_foreign
from unicorn_async.server.protocol.hints import (
    NO_USAGE,
    SHARED_HINTS,
    UsageOptions,
    check_verbosity,
    parse_hints,
    parse_usage_options,
)
from unicorn_async.server.protocol.messages import parse_messages, parse_text
from unicorn_async.server.protocol.reasoning import Reasoning, parse_effort
from unicorn_async.server.protocol.responses_request import parse_model
from unicorn_async.server.protocol.sampling import (
    SAMPLING_FIELDS,
    left_out,
    parse_limit,
    parse_sampling,
    parse_top_logprobs,
)
from unicorn_async.server.protocol.template_options import TEMPLATE_FIELDS, TemplateOptions, parse_template_options
from unicorn_async.server.protocol.tools import TOOL_FIELDS, ToolRequest, parse_tools

if TYPE_CHECKING:
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.tokenizer import ChatMessage

REFUSED = ("audio", "function_call", "functions", "moderation")
USED = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "n",
        "n_predict",
        "prediction",
        "reasoning_effort",
        "reasoning_format",
        "response_format",
        "store",
        "stream",
        "stream_options",
        "top_logprobs",
        "verbosity",
        "web_search_options",
    }
)
FOREIGN_FIELDS = FOREIGN.keys() | OF_CHAT.keys()
KNOWN = (
    SHARED_HINTS | USED | SAMPLING_FIELDS | FORMAT_FIELDS | TOOL_FIELDS | TEMPLATE_FIELDS | FOREIGN_FIELDS | {*REFUSED}
)
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request; `sampling.max_tokens` is not filled in, as in `ResponsesRequest`."""

    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    max_tokens: int | None = None
    n: int = 1
    prediction: str = ""  # of the answer
    stream: bool = False
    usage: UsageOptions = NO_USAGE
    model: str | None = None  # as in `ResponsesRequest`
    template: TemplateOptions = field(default_factory=TemplateOptions)
    reasoning: Reasoning = field(default_factory=Reasoning)
    left_out: frozenset[str] = frozenset()  # as in `ResponsesRequest`
    format: AnswerFormat = field(default_factory=AnswerFormat)  # as in `ResponsesRequest`
    tools: ToolRequest = field(default_factory=ToolRequest)


def parse_chat_request(fields: Fields, *, defaults: SamplingParams) -> ChatRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong, unknown, or asks for what is not supported.
    """
    fields.refuse_unknown(KNOWN)
    _refuse_unsupported(fields)
    usage = parse_usage_options(fields)
    parse_hints(fields)
    wanted = parse_response_format(fields)
    return ChatRequest(
        messages=parse_messages(fields),
        sampling=replace(
            parse_sampling(fields, defaults, top_logprobs=_logprobs(fields)), grammar=wanted.grammar or defaults.grammar
        ),
        max_tokens=parse_limit(fields, "max_completion_tokens", "max_tokens"),
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        prediction=_prediction(fields),
        stream=fields.boolean("stream") is True,
        usage=usage,
        model=parse_model(fields),
        template=parse_template_options(fields),
        reasoning=parse_effort(fields),
        left_out=left_out(fields),
        format=wanted,
        tools=parse_tools(fields, nested=True),
    )


def _refuse_unsupported(fields: Fields) -> None:
    for key in REFUSED:
        calls_none = key == "function_call" and fields.value(key) in ("none", "auto")  # of no functions
        if fields.value(key) not in (None, [], {}) and not calls_none:
            raise fields.unsupported(key, "not supported by this server")
    if fields.array("modalities") not in (None, [], ["text"]):
        raise fields.unsupported("modalities", "this server answers in text alone")
    if fields.value("web_search_options") is not None:  # an empty one asks for a search
        raise fields.unsupported("web_search_options", "this server does not search the web")
    if fields.boolean("store"):
        raise fields.unsupported("store", "chat completions are not kept here; the Responses API keeps its answers")
    if fields.metadata():
        raise fields.unsupported("metadata", "is kept with a completion, and completions are not kept here")
    check_verbosity(fields)
    refuse_foreign(fields)
    refuse_foreign(fields, OF_CHAT)


def _prediction(fields: Fields) -> str:
    """The text that the answer may be, mostly; what it brings is time alone."""
    prediction = fields.object("prediction")
    if prediction is None:
        return ""
    prediction.refuse_unknown(("type", "content"))
    prediction.choice("type", ("content",))
    return parse_text(prediction, "content")


def _logprobs(fields: Fields) -> int | None:
    count = parse_top_logprobs(fields)
    if fields.boolean("logprobs"):
        return count or 0
    if count:
        raise fields.unsupported("top_logprobs", "needs logprobs to be true")
    return None
