"""Requests of Embeddings: what is handed to the engine for them."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import ParameterError, PromptTooLongError
from unicorn_async.server.protocol.embedding_answer import EmbeddingAnswer
from unicorn_async.server.protocol.embedding_request import MAX_NUMBERS, MAX_TOKENS
from unicorn_async.server.protocol.errors import ApiError, naming
from unicorn_async.server.request_context import asking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.protocol.embedding_request import EmbeddingRequest
    from unicorn_async.server.service import Service
    from unicorn_async.tokenizer import Tokenizer

AT_A_TIME = 16  # of a request's inputs in the engine; others have their turn beside them


class Embeddings(NamedTuple):
    """What is asked of an engine, and the answer that it goes to."""

    answer: EmbeddingAnswer
    generation: Generation


async def open_embeddings(service: Service, request: EmbeddingRequest) -> Embeddings:
    """Check a request against the model and hand it over; the generation's `close` has to follow.

    Waits for a model on its way.

    Raises:
        UnicornError: refused; nothing is left behind.
    """
    model = await service.model(request.model)
    engine = model.engine
    size = request.dimensions or engine.embedding_size
    if size > engine.embedding_size:
        raise ParameterError("dimensions", f"expected 1 to {engine.embedding_size}, got {size}")
    most = MAX_NUMBERS[request.encoding]
    if len(request.inputs) * size > most:
        message = (
            f"input: expected at most {most} numbers as {request.encoding}, got {len(request.inputs)} times {size}"
        )
        raise ApiError(message, code="invalid_value", param="input")
    prompts = await _prompts(service, engine, request.inputs)
    num_tokens = sum(map(len, prompts))
    answer = EmbeddingAnswer(engine.model_name, request.encoding, len(prompts), num_tokens)
    name = f"embd-{secrets.token_hex(16)}"
    stream = _stream(engine, prompts, answer, request.dimensions, name)
    generation = await service.begin(model, service.metrics.counted(stream, num_tokens), f"{name}-0")
    return Embeddings(answer, generation)


async def _prompts(service: Service, engine: EngineAPI, inputs: Sequence[str | tuple[int, ...]]) -> list[list[int]]:
    prompts: list[list[int]] = []
    num_tokens, most = 0, engine.max_context + 1  # of which none is left for an answer
    for index, given in enumerate(inputs):
        if isinstance(given, str):
            text = given

            def encode(tokenizer: Tokenizer, text: str = text) -> list[int]:
                return tokenizer.encode(text, add_eos=True, max_context=most)

            with naming(f"input[{index}]"):
                try:
                    prompts.append(await service.prompts.encoded(engine.tokenizer, len(text), encode))
                except PromptTooLongError as exc:
                    message = f"the text has more tokens than the {engine.max_context} that the context holds"
                    raise PromptTooLongError(message) from exc
        else:
            prompts.append(list(given))
        num_tokens += len(prompts[-1])
        if not prompts[-1]:
            message = f"input[{index}]: expected at least one token"
            raise ApiError(message, code="invalid_value", param=f"input[{index}]")
        if num_tokens > MAX_TOKENS:
            message = f"input: expected at most {MAX_TOKENS} tokens, got {num_tokens} in the first {index + 1} inputs"
            raise ApiError(message, code="invalid_value", param="input")
    return prompts


async def _stream(
    engine: EngineAPI, prompts: Sequence[list[int]], answer: EmbeddingAnswer, dimensions: int | None, name: str
) -> AsyncGenerator[Token, None]:
    """Have all embeddings made, some at a time, and then yield one token, without text, as an answer's end."""
    client, waiting = asking.get().name, iter(enumerate(prompts))

    async def work() -> None:
        for index, prompt in waiting:
            request_id = f"{name}-{index}"
            answer.add(index, await engine.embed(prompt, dimensions=dimensions, request_id=request_id, client=client))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_A_TIME, len(prompts))):
                group.create_task(work())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    yield Token(0, "", finish_reason=FinishReason.STOP)
