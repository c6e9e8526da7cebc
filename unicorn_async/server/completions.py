"""Requests of Chat Completions: what is handed to the engine for them."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.errors import PromptTooLongError
from unicorn_async.server.choices import Choices, close_all, seeded
from unicorn_async.server.fingerprint import fingerprint
from unicorn_async.server.fitting import fitted, with_recommended
from unicorn_async.server.protocol.call_items import check_calls
from unicorn_async.server.protocol.completion_object import CompletionHead, CompletionObject
from unicorn_async.server.protocol.errors import naming
from unicorn_async.server.protocol.messages import merge_system
from unicorn_async.server.tool_plan import ToolPlan, chat_answer, with_grammar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.protocol.chat_answer import ChatAnswer
    from unicorn_async.server.protocol.chat_request import ChatRequest
    from unicorn_async.server.protocol.hints import UsageOptions
    from unicorn_async.server.served_model import ServedModel
    from unicorn_async.server.service import Service
    from unicorn_async.tokenizer import Tokenizer


async def open_chat(service: Service, request: ChatRequest) -> Choices[ChatAnswer]:
    """Check a chat request against the model and hand it over; `close` has to follow. Waits for a model on its way.

    Raises:
        UnicornError: refused; nothing is left behind.
    """
    model = await service.model(request.model)
    engine = model.engine
    check_calls(request.messages, "messages")
    plan = ToolPlan.of(engine.tokenizer, request.tools.use)
    guided = await with_grammar(model, plan, request)
    tokenizer, reasoning = engine.tokenizer, request.reasoning
    options = replace(request.template.beside(reasoning.variables(tokenizer)), use=request.tools.use)
    messages = merge_system(None, request.messages)
    wanted = with_recommended(service.options, engine, guided, request.left_out)
    with naming("messages"):
        prompt = await service.prompts.encode_chat(tokenizer, messages, options, engine.max_context)
        sampling = fitted(service.options, engine, prompt, wanted, request.max_tokens)
    prediction = await _predicted(service, engine, request.prediction)
    head = head_of("chatcmpl", model, request.usage)
    answers = [
        chat_answer(
            plan,
            head,
            index,
            tokenizer,
            wants_logprobs=sampling.top_logprobs is not None,
            splitter=plan.splitter(reasoning, tokenizer, prompt, request.format),
        )
        for index in range(request.n)
    ]
    for answer in answers:
        answer.num_input = len(prompt)
    asked = [(prompt, seeded(sampling, index)) for index in range(request.n)]
    begun = await begin_all(service, model, head.id, asked, prediction)
    for generation in begun:
        generation.refusal = partial(plan.refusal, request.format)
    return Choices(CompletionObject(head, answers, len(prompt)), begun)


async def _predicted(service: Service, engine: EngineAPI, text: str) -> list[int]:
    """The tokens of a prediction, which has to be one that the context has room for."""
    if not text:
        return []

    def encode(tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(text, add_bos=False, max_context=engine.max_context)

    with naming("prediction.content"):
        try:
            return await service.prompts.encoded(engine.tokenizer, len(text), encode)
        except PromptTooLongError as exc:
            message = f"the prediction is longer than an answer in a context of {engine.max_context} tokens can be"
            raise PromptTooLongError(message) from exc


def head_of(prefix: str, model: ServedModel, usage: UsageOptions) -> CompletionHead:
    """Return what stands at the beginning of each object of a new completion."""
    name, engine = f"{prefix}-{secrets.token_hex(16)}", model.engine
    return CompletionHead(name, engine.model_name, fingerprint(engine), usage)


async def begin_all(
    service: Service,
    model: ServedModel,
    name: str,
    asked: Sequence[tuple[list[int], SamplingParams]],
    prediction: Sequence[int] = (),
) -> list[Generation]:
    """Hand all prompts to the engine, or none.

    Raises:
        UnicornError: one is refused.
    """

    async def begin(number: int, place: Lease) -> Generation:
        (prompt, sampling), request_id = asked[number], f"{name}-{number}" if number else name
        return await service.generate(model, prompt, sampling, request_id, prediction, place=place)

    return await begin_each(service, len(asked), begin)


async def begin_each(
    service: Service, number: int, begin: Callable[[int, Lease], Awaitable[Generation]]
) -> list[Generation]:
    """Begin so many generations, or none; their places are claimed at once, so that two requests never share them out.

    Raises:
        UnicornError: one is refused.
    """
    places = service.places(number)
    begun: list[Generation] = []
    try:
        for index, place in enumerate(places):
            begun.append(await begin(index, place))
    except BaseException:
        await close_all(begun)
        for place in places:
            place.release()
        raise
    return begun
