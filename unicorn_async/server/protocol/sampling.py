"""Sampling parameters from a request body, as far as both APIs spell them alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_TOP_K, MAX_TOP_LOGPROBS, SamplingParams
from unicorn_async.errors import ConfigError
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import checked_text, type_name

if TYPE_CHECKING:
    from unicorn_async.server.protocol.fields import Fields

MAX_TOKENS = (1 << 31) - 1
SAMPLING_FIELDS = frozenset(
    {
        "frequency_penalty",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "temperature",
        "top_k",
        "top_p",
    }
)


def parse_sampling(fields: Fields, defaults: SamplingParams, *, top_logprobs: int | None) -> SamplingParams:
    """Return the parameters of one request; what it leaves out comes from the defaults. `max_tokens` is untouched.

    Raises:
        ApiError: a value of the wrong type or out of range, with the field's name.
    """

    def number(name: str, default: float) -> float:
        value = fields.number(name)
        return default if value is None else value

    seed = fields.integer("seed", 0, (1 << 64) - 1)
    top_k = fields.integer("top_k", 0, MAX_TOP_K)
    try:
        return replace(
            defaults,
            temperature=number("temperature", defaults.temperature),
            top_p=number("top_p", defaults.top_p),
            min_p=number("min_p", defaults.min_p),
            top_k=defaults.top_k if top_k is None else top_k,
            repetition_penalty=number("repetition_penalty", defaults.repetition_penalty),
            presence_penalty=number("presence_penalty", defaults.presence_penalty),
            frequency_penalty=number("frequency_penalty", defaults.frequency_penalty),
            seed=defaults.seed if seed is None else seed,
            stop=parse_stop(fields, defaults.stop),
            top_logprobs=top_logprobs,
        )
    except ConfigError as exc:
        raise ApiError(str(exc), code="invalid_value", param=str(exc).partition(":")[0]) from exc


def parse_stop(fields: Fields, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stop strings: one string or an array of them."""
    value = fields.value("stop")
    if value is None:
        return default
    items = [value] if isinstance(value, str) else fields.array("stop") or []
    stops: list[str] = []
    for index, item in enumerate(items):
        name = f"{fields.name('stop')}[{index}]"
        if not isinstance(item, str):
            raise ApiError(f"{name}: expected a string, got {type_name(item)}", code="invalid_type", param=name)
        stops.append(checked_text(item, name))
    return tuple(stops)


def parse_top_logprobs(fields: Fields) -> int | None:
    """Return how many alternatives the client wants to see for each token."""
    return fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
