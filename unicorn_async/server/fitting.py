"""A request's sampling parameters beside what the model recommends and has room for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import ParameterError, PromptTooLongError
from unicorn_async.server.protocol.sampling import recommended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.options import ServerOptions


def with_recommended(
    options: ServerOptions, engine: EngineAPI, sampling: SamplingParams, left_out: frozenset[str]
) -> SamplingParams:
    """Return the sampling parameters with the model's own where a request leaves some out, if these are wanted."""
    if not options.recommended_sampling:
        return sampling
    return recommended(sampling, left_out, engine.recommended_sampling)


def fitted(
    options: ServerOptions, engine: EngineAPI, prompt: Sequence[int], sampling: SamplingParams, limit: int | None
) -> SamplingParams:
    """Return the sampling parameters with the answer's limit, at most what the context has room for.

    Raises:
        PromptTooLongError: there is room for none.
        ParameterError: it is to be longer than that.
    """
    room = engine.max_context - len(prompt)
    if room < 1:
        context = engine.max_context
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens; a context of {context} has no room for an answer to it"
        )
    wanted = limit if limit is not None else options.default_max_tokens
    most = room if wanted is None else min(wanted, room)
    if sampling.min_tokens > most:
        raise ParameterError("min_tokens", f"the answer has at most {most} tokens, got {sampling.min_tokens}")
    return replace(sampling, max_tokens=most)
