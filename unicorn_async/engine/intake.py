"""What requests ask, as sequences."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from unicorn_async.engine.prompt_encoding import PromptEncoding
from unicorn_async.errors import ConfigError, ParameterError, RequestError
from unicorn_async.pooling import Embedded
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.engine.lifetime import Lifetime
    from unicorn_async.engine.opened_model import OpenedModel
    from unicorn_async.scheduler.scheduler import Scheduler
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.tokenizer import Tokenizer


class Intake:
    """Makes sequences for one engine: prompts as token ids, checked against the model, and names for the nameless.

    Each of its methods raises what has ended the engine, and RequestError where the model can't do what is asked.
    """

    def __init__(self, model: OpenedModel, scheduler: Scheduler, lifetime: Lifetime) -> None:
        self._model = model
        self._scheduler = scheduler  # whose context may become smaller
        self._lifetime = lifetime
        self._encoding = PromptEncoding()
        self._names = (f"request-{number}" for number in itertools.count())

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; ConfigError without one."""
        if self._model.tokenizer is None:
            raise ConfigError(f"{self._model.name} was opened with skip_tokenizer: it has token ids and no text")
        return self._model.tokenizer

    async def answer(
        self,
        prompt: str | SequenceOf[int],
        sampling: SamplingParams,
        request_id: str | None,
        *,
        cache_salt: str,
        client: str,
        prediction: SequenceOf[int],
    ) -> Sequence:
        """Return the sequence of an answer."""
        from unicorn_async.engine.request_stream import checked_salt

        if isinstance(prompt, str):
            prompt = await self._encoding.ids(self.tokenizer, prompt, self._scheduler.max_context)
        sequence = self._sequence(prompt, sampling, request_id)
        sequence.cache_salt, sequence.client = checked_salt(cache_salt), client
        if prediction:
            sequence.prediction_ids = self._predicted(prediction)
        return sequence

    def _predicted(self, prediction: SequenceOf[int]) -> tuple[int, ...]:
        """Return a prediction without tokens that the model has no embeddings of: it is only a hint."""
        from unicorn_async.engine.request_stream import checked_ids

        files, tokenizer = self._model.files, self._model.tokenizer
        without = () if tokenizer is None else files.without_rows(tokenizer)
        known = [token_id for token_id in prediction if token_id not in without] if without else prediction
        return checked_ids(known, files.config.vocab_size) if len(known) else ()

    def logits(self, token_ids: SequenceOf[int]) -> Sequence:
        """Return a sequence whose logits are wanted."""
        sequence = self._sequence(token_ids, SamplingParams(max_tokens=1), None)
        sequence.want_logits = True
        return sequence

    async def embedding(
        self, prompt: str | SequenceOf[int], dimensions: int | None, request_id: str | None, *, client: str
    ) -> Sequence:
        """Return a sequence whose embedding is wanted."""
        pooler, most = self._model.files.pooler, self._model.files.config.hidden_size
        if pooler.refusal is not None:
            raise RequestError(f"{self._model.name} has no embeddings here: {pooler.refusal}")
        if dimensions is not None and not 1 <= dimensions <= most:
            raise ParameterError("dimensions", f"expected 1 to {most}, got {dimensions}")
        if isinstance(prompt, str):
            prompt = await self._encoding.whole_ids(self.tokenizer, prompt, self._scheduler.max_context)
        sequence = self._sequence(prompt, SamplingParams(max_tokens=1), request_id)
        sequence.embedded = Embedded(pooler.pooling, pooler.normalises, dimensions or most)
        sequence.client = client
        return sequence

    def _sequence(self, prompt: SequenceOf[int], sampling: SamplingParams, request_id: str | None) -> Sequence:
        from unicorn_async.engine.request_stream import check_token_ids, checked_ids
        from unicorn_async.scheduler.sequence import Sequence

        self._lifetime.check()
        seed = random.getrandbits(64) if sampling.seed is None else sampling.seed
        vocab_size = self._model.files.config.vocab_size
        ids = checked_ids(prompt, vocab_size, self._model.tokenizer)
        check_token_ids(sampling, vocab_size)
        return Sequence(request_id or next(self._names), ids, sampling, seed)
