"""`truncation: "auto"`: the oldest turns of a conversation go where the context has no room for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from unicorn_async.tokenizer import ChatMessage

ANSWER_SHARE = 4  # of a context that is cut, the part that an answer may have


async def fitting_prompt(
    messages: Sequence[ChatMessage],
    encode: Callable[[Sequence[ChatMessage]], Awaitable[list[int]]],
    max_context: int,
    max_tokens: int | None,
) -> list[int]:
    """Return the prompt of a conversation, without as many of its oldest turns as have to go.

    A turn begins with a user's message. What the system says stays, as does the last turn. Where something goes, as
    much goes as leaves room for an answer of `max_tokens`, or of a quarter of the context where that is less.
    """
    prompt = await encode(messages)
    if len(prompt) < max_context:
        return prompt
    room = max_context // ANSWER_SHARE
    longest = max_context - max(1, min(room, max_tokens or room))
    num_turns = sum(message.role == "user" for message in messages)
    low, high = 1, max(num_turns - 1, 0)  # so many go: at least, and at most
    best = prompt
    while low <= high:
        middle = (low + high) // 2
        prompt = await encode(without_oldest(messages, middle))
        if len(prompt) <= longest:
            best, high = prompt, middle - 1
        else:
            low = middle + 1
    return best if len(best) < max_context else prompt


def without_oldest(messages: Sequence[ChatMessage], num_turns: int) -> list[ChatMessage]:
    """Return the messages without so many turns from the beginning; what stands before the first goes with it."""
    kept: list[ChatMessage] = []
    seen = 0
    for message in messages:
        seen += message.role == "user"
        if message.role == "system" or seen > num_turns:
            kept.append(message)
    return kept
