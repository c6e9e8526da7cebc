"""POST /v1/responses/compact: the model itself writes a summary of a conversation."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import PromptTooLongError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.fitting import fitted
from unicorn_async.server.prompts import PLAIN
from unicorn_async.server.protocol.call_items import check_calls
from unicorn_async.server.protocol.compact_request import CompactionAnswer
from unicorn_async.server.protocol.compaction import with_summaries
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.messages import merge_system
from unicorn_async.server.protocol.reasoning import Reasoning
from unicorn_async.server.truncation import ANSWER_SHARE, fitting_prompt
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.protocol.compact_request import CompactRequest
    from unicorn_async.server.service import Service
    from unicorn_async.tokenizer import Tokenizer

SUMMARY_TOKENS = 1024  # at most; a quarter of the context where that is less
_INSTRUCTION = """\
Write a summary of the conversation above, for yourself: you will go on with it from this summary alone, and from what \
the user said. Keep the user's aims and constraints, decisions with their reasons, what was found and done (names, \
numbers, code and results of tools where they matter), and what is still open. Don't answer what is asked above. Write \
the summary and nothing else."""


class Compaction(NamedTuple):
    """What is asked of an engine, and the answer that it goes to."""

    answer: CompactionAnswer
    generation: Generation


async def open_compaction(service: Service, request: CompactRequest) -> Compaction:
    """Check a request against the model and hand it over; the generation's `close` has to follow.

    Waits for a model on its way.

    Raises:
        UnicornError: refused; nothing is left behind.
    """
    model = await service.model(request.model)
    engine = model.engine
    conversation = await service.responses.earlier(request.previous_response_id) + request.messages
    check_calls(conversation, "input")
    quiet = _quiet(engine.tokenizer)
    messages = merge_system(request.instructions, with_summaries(conversation))
    prompt = await _prompt(service, engine, messages, quiet)
    sampling = fitted(service.options, engine, prompt, SamplingParams(), _room(engine))
    splitter = quiet.splitter(engine.tokenizer, prompt)
    name = f"resp_{secrets.token_hex(16)}"
    answer = CompactionAnswer(name, conversation, len(prompt), splitter)
    return Compaction(answer, await service.generate(model, prompt, sampling, name))


async def _prompt(service: Service, engine: EngineAPI, messages: Sequence[ChatMessage], quiet: Reasoning) -> list[int]:
    """Return the prompt of a summary: the conversation, without as many of its oldest turns as leave no room for one.

    Raises:
        PromptTooLongError: the conversation is longer than the context, or its last turn leaves no such room.
    """
    options = PLAIN.beside(quiet.variables(engine.tokenizer))
    encode = partial(service.prompts.encode_chat, engine.tokenizer, options=options)

    async def asking_for_summary(given: Sequence[ChatMessage]) -> list[int]:
        return await encode(_with_instruction(given))

    await encode(messages, max_context=engine.max_context)
    longest = engine.max_context - _room(engine)
    prompt = await fitting_prompt(messages, asking_for_summary, longest + 1, 1)
    if len(prompt) > longest:
        message = (
            f"the last turn and what asks for a summary have {len(prompt)} tokens; a context of {engine.max_context} "
            f"has room for {longest} beside a summary"
        )
        raise PromptTooLongError(message)
    return prompt


def _room(engine: EngineAPI) -> int:
    return max(1, min(SUMMARY_TOKENS, engine.max_context // ANSWER_SHARE))


def _with_instruction(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return a conversation that ends with the wish for a summary, in the last message where that is the user's."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return (*messages, ChatMessage("user", _INSTRUCTION))
    return (*messages[:-1], replace(last, content=f"{last.content}\n\n{_INSTRUCTION}"))


def _quiet(tokenizer: Tokenizer) -> Reasoning:
    """Return how a model is kept from thinking, where it can be."""
    quiet = Reasoning("none")
    try:
        quiet.variables(tokenizer)
    except ApiError:  # it always thinks
        return Reasoning()
    return quiet
