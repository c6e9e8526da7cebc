"""Requests of Completions: what is handed to the engine for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.errors import GrammarError
from unicorn_async.server.choices import Choices, seeded
from unicorn_async.server.completions import begin_all, begin_each, head_of
from unicorn_async.server.fitting import fitted, with_recommended
from unicorn_async.server.protocol.completion_answer import CompletionAnswer, TextCompletion
from unicorn_async.server.protocol.errors import naming

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.engine.types import Token
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.protocol.answer_format import AnswerFormat
    from unicorn_async.server.protocol.completion_request import CompletionRequest
    from unicorn_async.server.served_model import ServedModel
    from unicorn_async.server.service import Service
    from unicorn_async.tokenizer import Tokenizer


async def open_completion(service: Service, request: CompletionRequest) -> Choices[CompletionAnswer]:
    """Check a completion request against the model and hand it over, as `open_chat` does.

    Raises:
        UnicornError: refused; nothing is left behind.
    """
    model = await service.model(request.model)
    await _check_form(model, request.format)
    tokenizer = model.engine.tokenizer
    wanted = with_recommended(service.options, model.engine, request.sampling, request.left_out)
    head = head_of("cmpl", model, request.usage)
    prompts: list[list[int]] = []
    answers: list[CompletionAnswer] = []
    asked: list[tuple[list[int], SamplingParams]] = []
    for given in request.prompts:
        with naming("prompt"):
            if isinstance(given, str):
                encode = partial(_ids, given, add_bos=request.add_bos, max_context=model.engine.max_context)
                prompt = await service.prompts.encoded(tokenizer, len(given), encode)
            else:
                prompt = list(given)
            echo = "" if not request.echo else given if isinstance(given, str) else tokenizer.decode(prompt)
            sampling = wanted
            if request.max_tokens != 0:
                sampling = fitted(service.options, model.engine, prompt, wanted, request.max_tokens)
        prompts.append(prompt)
        for number in range(request.best_of):
            asked.append((prompt, seeded(sampling, number)))
            answer = CompletionAnswer(
                head, len(answers), tokenizer.token_bytes, wants_logprobs=request.shows_logprobs, echo=echo
            )
            answer.num_input, answer.is_prompt_alone = len(prompt), request.max_tokens == 0
            answers.append(answer)
    completion = TextCompletion(head, answers, sum(map(len, prompts)), n=request.n, best_of=request.best_of)
    with naming("prompt"):
        if request.max_tokens == 0:

            async def begin(_: int, place: Lease) -> Generation:
                return await service.begin(model, _no_answer(), head.id, place)

            return Choices(completion, await begin_each(service, len(answers), begin))
        begun = await begin_all(service, model, head.id, asked)
    for generation in begun:
        generation.refusal = request.format.refusal
    return Choices(completion, begun)


async def _check_form(model: ServedModel, wanted: AnswerFormat) -> None:
    """Have the grammar compiled that the answer is to follow, if there is one."""
    if wanted.grammar is None:
        return
    try:
        await model.check_grammar(wanted.grammar)
    except GrammarError as exc:
        raise wanted.refusal(exc) from exc


async def _no_answer() -> AsyncGenerator[Token, None]:
    """Yield nothing, for who wants the prompt alone."""
    nothing: tuple[Token, ...] = ()
    for token in nothing:
        yield token


def _ids(text: str, tokenizer: Tokenizer, *, add_bos: bool, max_context: int) -> list[int]:
    return tokenizer.encode(text, add_bos=add_bos, with_control=True, max_context=max_context)
