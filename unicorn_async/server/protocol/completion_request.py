"""The body of POST /v1/completions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from unicorn_async.sampling_params import MAX_TOP_LOGPROBS
from unicorn_async.server.protocol.answer_format import FORMAT_FIELDS, AnswerFormat, parse_response_format
from unicorn_async.server.protocol.chat_request import MAX_CHOICES
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import checked_text, type_name
from unicorn_async.server.protocol.foreign import FOREIGN, refuse_foreign
from unicorn_async.server.protocol.hints import MAX_NAME, NO_USAGE, UsageOptions, parse_usage_options
from unicorn_async.server.protocol.responses_request import parse_model
from unicorn_async.server.protocol.sampling import MAX_TOKENS, SAMPLING_FIELDS, left_out, parse_limit, parse_sampling

if TYPE_CHECKING:
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.protocol.fields import Fields

USED = frozenset(
    {
        "add_special_tokens",
        "best_of",
        "echo",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "n_predict",
        "prompt",
        "response_format",
        "stream",
        "stream_options",
        "suffix",
        "user",
    }
)
KNOWN = USED | SAMPLING_FIELDS | FORMAT_FIELDS | FOREIGN.keys()
DEFAULT_MAX_TOKENS = 16  # as OpenAI's and vLLM's


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked request; each prompt is text or token ids. `sampling.max_tokens` is filled in by the service."""

    prompts: tuple[str | tuple[int, ...], ...]
    sampling: SamplingParams
    max_tokens: int | None = DEFAULT_MAX_TOKENS  # 0: the prompt alone is wanted; None: as many as there is room for
    n: int = 1
    best_of: int = 1
    echo: bool = False
    add_bos: bool = True
    stream: bool = False
    usage: UsageOptions = NO_USAGE
    model: str | None = None  # as in `ResponsesRequest`
    shows_logprobs: bool = False
    left_out: frozenset[str] = frozenset()  # as in `ResponsesRequest`
    format: AnswerFormat = field(default_factory=AnswerFormat)  # as in `ResponsesRequest`


def parse_completion_request(fields: Fields, *, defaults: SamplingParams) -> CompletionRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong, unknown, or asks for what is not supported.
    """
    fields.refuse_unknown(KNOWN)
    if fields.string("suffix"):
        raise fields.unsupported(
            "suffix", "text is continued here, not filled in; put the model's own marks for that in"
        )
    fields.string("user", max_length=MAX_NAME)
    prompts = parse_prompts(fields)
    refuse_foreign(fields)
    usage = parse_usage_options(fields)
    stream = fields.boolean("stream") is True
    n = fields.integer("n", 1, MAX_CHOICES) or 1
    best_of = fields.integer("best_of", 1, MAX_CHOICES) or n
    if best_of < n:
        raise fields.wrong("best_of", f"at least n, which is {n}", code="invalid_value")
    if best_of > n and stream:
        raise fields.unsupported("best_of", "which answers are best shows at their end: it does not go with stream")
    if len(prompts) * best_of > MAX_CHOICES:
        message = f"prompt: expected at most {MAX_CHOICES} answers to a request, got {len(prompts)} times {best_of}"
        raise ApiError(message, code="invalid_value", param="prompt")
    logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    echo = fields.boolean("echo") is True
    if echo and logprobs is not None:
        raise fields.unsupported("logprobs", "those of a prompt are not computed: it does not go with echo")
    wanted = parse_response_format(fields)
    sampling = parse_sampling(fields, defaults, top_logprobs=logprobs)
    sampling = replace(sampling, grammar=wanted.grammar or defaults.grammar)
    if best_of > n and logprobs is None:
        sampling = replace(sampling, top_logprobs=0)  # which is the best goes by them
    return CompletionRequest(
        prompts=prompts,
        sampling=sampling,
        max_tokens=_limit(fields, echo=echo),
        n=n,
        best_of=best_of,
        echo=echo,
        add_bos=fields.boolean("add_special_tokens") is not False,
        stream=stream,
        usage=usage,
        model=parse_model(fields),
        shows_logprobs=logprobs is not None,
        left_out=left_out(fields),
        format=wanted,
    )


def _limit(fields: Fields, *, echo: bool) -> int | None:
    if fields.value("max_tokens") is None and fields.value("n_predict") is None:
        return DEFAULT_MAX_TOKENS
    if not echo or fields.integer("max_tokens", 0, MAX_TOKENS) != 0:
        return parse_limit(fields, "max_tokens")
    if fields.value("n_predict") not in (None, -1):
        raise fields.wrong("n_predict", "0, as max_tokens says", code="invalid_value")
    return 0


def parse_prompts(fields: Fields, key: str = "prompt", most: int = MAX_CHOICES) -> tuple[str | tuple[int, ...], ...]:
    """Return the prompts, or what else a field holds: a text, token ids, or an array of at most so many of either.

    Raises:
        ApiError: it is something else, or empty.
    """
    value = fields.value(key)
    if isinstance(value, str):
        return (checked_text(value, key),)
    if not isinstance(value, list) or not value:
        raise fields.wrong(key, "a string, token ids, or an array of these")
    if _are_ids(value):
        return (tuple(value),)
    if len(value) > most:
        message = f"{key}: expected at most {most} of them, got {len(value)}"
        raise ApiError(message, code="invalid_value", param=key)
    return tuple(_prompt(item, f"{key}[{index}]") for index, item in enumerate(value))


def parse_ids(value: object, name: str) -> tuple[int, ...]:
    """Return token ids.

    Raises:
        ApiError: it is no array of whole numbers.
    """
    if not isinstance(value, list):
        raise ApiError(f"{name}: expected token ids, got {type_name(value)}", code="invalid_type", param=name)
    if not _are_ids(value):
        wrong = next(item for item in value if not _are_ids([item]))
        message = f"{name}: expected token ids, 0 to {(1 << 31) - 1}, got {wrong!r}"[:200]
        raise ApiError(message, code="invalid_value", param=name)
    return tuple(value)


def _prompt(value: object, name: str) -> str | tuple[int, ...]:
    return checked_text(value, name) if isinstance(value, str) else parse_ids(value, name)


def _are_ids(values: list[object]) -> bool:
    """Look at each without a step of Python's: there may be half a million."""
    if not set(map(type, values)) <= {int}:
        return False
    numbers = cast("list[int]", values)
    return min(numbers, default=0) >= 0 and max(numbers, default=0) < 1 << 31
