"""What ends a sequence by itself: its longest length, and the tokens that end an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import PromptTooLongError, RequestError
from unicorn_async.sampling_params import MAX_BIASED_TOKENS

if TYPE_CHECKING:
    from unicorn_async.scheduler.sequence import Sequence


def set_bounds(sequence: Sequence, max_context: int, eos_token_ids: frozenset[int]) -> None:
    """Give a new sequence its bounds in a context of so many tokens, with a model's own end tokens.

    Raises:
        PromptTooLongError: the context has no room for the prompt and one token.
        RequestError: the prompt is empty, or more tokens have biases, or are banned, than there is room for.
    """
    num_prompt = len(sequence.prompt_ids)
    if num_prompt == 0:
        raise RequestError("prompt: expected at least 1 token, got 0")
    if num_prompt + sequence.samples > max_context:
        raise PromptTooLongError(f"prompt: {num_prompt} tokens leave no room in a context of {max_context}")
    sequence.end_token_ids = _end_token_ids(sequence, eos_token_ids)
    sequence.max_length = num_prompt
    if sequence.samples:
        sequence.max_length = min(num_prompt + sequence.sampling.max_tokens, max_context)


def _end_token_ids(sequence: Sequence, eos_token_ids: frozenset[int]) -> frozenset[int]:
    sampling = sequence.sampling
    own = frozenset(sampling.stop_token_ids)
    ends = own if sampling.ignore_eos else own | eos_token_ids
    biased = len(sampling.logit_bias) + len(ends) * (sampling.min_tokens > 0)
    if biased > MAX_BIASED_TOKENS:
        raise RequestError(
            f"min_tokens: {len(ends)} tokens end the answer, and {len(sampling.logit_bias)} have a logit_bias;"
            f" expected at most {MAX_BIASED_TOKENS} together, got {biased}"
        )
    return ends
