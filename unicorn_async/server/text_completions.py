"""Requests of Completions: what is handed to the engine for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.server.choices import Choices, seeded
from unicorn_async.server.completions import begin_all, head_of
from unicorn_async.server.protocol.completion_answer import CompletionAnswer, TextCompletion
from unicorn_async.server.protocol.errors import naming

if TYPE_CHECKING:
    from unicorn_async.config import SamplingParams
    from unicorn_async.server.protocol.completion_request import CompletionRequest
    from unicorn_async.server.service import Service
    from unicorn_async.tokenizer import Tokenizer


async def open_completion(service: Service, request: CompletionRequest) -> Choices[CompletionAnswer]:
    """Check a completion request against the model and hand it over, as `open_chat` does.

    Raises:
        UnicornError: refused; nothing is left behind.
    """
    model = await service.models.model(request.model)
    tokenizer = model.engine.tokenizer
    wanted = service.with_recommended(model.engine, request.sampling, request.left_out)
    head = head_of("cmpl", model, include_usage=request.include_usage)
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
            sampling = service.fit(model.engine, prompt, wanted, request.max_tokens)
        prompts.append(prompt)
        for number in range(request.best_of):
            asked.append((prompt, seeded(sampling, number)))
            answers.append(
                CompletionAnswer(
                    head, len(answers), tokenizer.token_bytes, wants_logprobs=request.shows_logprobs, echo=echo
                )
            )
    answer = TextCompletion(head, answers, sum(map(len, prompts)), n=request.n, best_of=request.best_of)
    with naming("prompt"):
        return Choices(answer, await begin_all(service, model, head.id, asked))


def _ids(text: str, tokenizer: Tokenizer, *, add_bos: bool, max_context: int) -> list[int]:
    return tokenizer.encode(text, add_bos=add_bos, with_control=True, max_context=max_context)
