"""Sampling parameters from a request body, as far as both APIs spell them alike."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.sampling_params import (
    MAX_BIAS,
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    SamplingParams,
)
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import checked_text, type_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from unicorn_async.server.protocol.fields import Fields

MAX_TOKENS = (1 << 31) - 1
MAX_STOP_IDS = 128
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
SAMPLING_FIELDS = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
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

    ignore_eos = fields.boolean("ignore_eos")
    seed = fields.integer("seed", -1, (1 << 64) - 1)  # -1: any
    top_k = fields.integer("top_k", -1, MAX_TOP_K)  # -1: off, as 0
    min_tokens = fields.integer("min_tokens", 0, MAX_TOKENS)
    try:
        return replace(
            defaults,
            temperature=number("temperature", defaults.temperature),
            top_p=number("top_p", defaults.top_p),
            min_p=number("min_p", defaults.min_p),
            top_k=defaults.top_k if top_k is None else max(top_k, 0),
            repetition_penalty=number("repetition_penalty", defaults.repetition_penalty),
            presence_penalty=number("presence_penalty", defaults.presence_penalty),
            frequency_penalty=number("frequency_penalty", defaults.frequency_penalty),
            seed=defaults.seed if seed is None else None if seed < 0 else seed,
            stop=parse_stop(fields, defaults.stop),
            stop_token_ids=_parse_stop_ids(fields, defaults.stop_token_ids),
            ignore_eos=defaults.ignore_eos if ignore_eos is None else ignore_eos,
            top_logprobs=top_logprobs,
            min_tokens=defaults.min_tokens if min_tokens is None else min_tokens,
            logit_bias=_parse_biases(fields, defaults.logit_bias),
        )
    except ConfigError as exc:
        raise ApiError(str(exc), code="invalid_value", param=str(exc).partition(":")[0]) from exc


def parse_limit(fields: Fields, *keys: str) -> int | None:
    """Return how many tokens an answer may have, by whichever of these fields says so, or llama-server's name.

    Raises:
        ApiError: two of them differ, or one is out of range.
    """
    limits = {key: fields.integer(key, 1, MAX_TOKENS) for key in keys}
    limits["n_predict"] = fields.integer("n_predict", -1, MAX_TOKENS)
    if limits["n_predict"] == 0:
        raise fields.wrong("n_predict", f"-1 for no limit, or 1 to {MAX_TOKENS}", code="invalid_value")
    given = {key: limit for key, limit in limits.items() if limit is not None and limit > 0}
    for key, limit in given.items():
        first = next(iter(given))
        if limit != given[first]:
            raise fields.wrong(key, f"{given[first]}, as {first} says", code="invalid_value")
    return next(iter(given.values()), None)


def recommended(
    sampling: SamplingParams, left_out: Collection[str], recommendation: Mapping[str, float]
) -> SamplingParams:
    """Return the parameters with what the model's makers recommend in place of what a request left out."""
    found: dict[str, Any] = {name: value for name, value in recommendation.items() if name in left_out}
    return replace(sampling, **found) if found else sampling


def left_out(fields: Fields) -> frozenset[str]:
    """Return the names of the parameters that a request leaves to the server."""
    return frozenset(name for name in SAMPLING_FIELDS if fields.value(name) is None)


def parse_stop(fields: Fields, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stop strings: one string or an array of them."""
    value = fields.value("stop")
    if value is None:
        return default
    items = [value] if isinstance(value, str) else fields.array("stop") or []
    if len(items) > MAX_STOPS:
        name = fields.name("stop")
        raise ApiError(
            f"{name}: expected up to {MAX_STOPS} strings, got {len(items)}", code="invalid_value", param=name
        )
    stops: list[str] = []
    for index, item in enumerate(items):
        name = fields.name("stop") if item is value else f"{fields.name('stop')}[{index}]"
        if not isinstance(item, str):
            raise ApiError(f"{name}: expected a string, got {type_name(item)}", code="invalid_type", param=name)
        if not 0 < len(item) <= MAX_STOP_CHARS:
            message = f"{name}: expected 1 to {MAX_STOP_CHARS} characters, got {len(item)}"
            raise ApiError(message, code="invalid_value", param=name)
        stops.append(checked_text(item, name))
    return tuple(stops)


def _parse_stop_ids(fields: Fields, default: tuple[int, ...]) -> tuple[int, ...]:
    items = fields.array("stop_token_ids")
    if items is None:
        return default
    name = fields.name("stop_token_ids")
    if len(items) > MAX_STOP_IDS:
        message = f"{name}: expected at most {MAX_STOP_IDS} token ids, got {len(items)}"
        raise ApiError(message, code="invalid_value", param=name)
    ids: list[int] = []
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 1 << 31:
            raise ApiError(f"{name}: expected token ids, got {item!r}"[:200], code="invalid_value", param=name)
        ids.append(item)
    return tuple(ids)


def _parse_biases(fields: Fields, default: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Return the biases of single tokens, which JSON names by their ids as strings."""
    biases = fields.object("logit_bias")
    if biases is None:
        return default
    keys = biases.keys()
    if len(keys) > MAX_LOGIT_BIASES:
        message = f"logit_bias: expected at most {MAX_LOGIT_BIASES} tokens, got {len(keys)}"
        raise ApiError(message, code="invalid_value", param="logit_bias")
    return tuple((_token_id(key), _bias(biases, key)) for key in keys)


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key) or int(key) >= 1 << 31:
        message = f"logit_bias: expected token ids, 0 to {(1 << 31) - 1}, got {key[:80]!r}"
        raise ApiError(message, code="invalid_value", param="logit_bias")
    return int(key)


def _bias(biases: Fields, key: str) -> float:
    value = biases.number(key)
    if value is None or not -MAX_BIAS <= value <= MAX_BIAS:
        raise biases.wrong(key, f"{-MAX_BIAS:g} to {MAX_BIAS:g}", code="invalid_value")
    return value


def parse_top_logprobs(fields: Fields) -> int | None:
    """Return how many alternatives the client wants to see for each token."""
    return fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
