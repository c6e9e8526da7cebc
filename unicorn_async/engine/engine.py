"""The engine: a model on a device, and streams of tokens from it.

What it needs once a model loads is imported then: a model that is opened first of all waits for less.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.background import run_task
from unicorn_async.config import EngineConfig
from unicorn_async.engine.devices import Ending, opening_devices
from unicorn_async.engine.intake import Intake
from unicorn_async.engine.lifetime import Lifetime
from unicorn_async.engine.report import EngineReport
from unicorn_async.engine.types import DraftInfo
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.host_pages import return_freed_memory
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from collections.abc import Sequence as SequenceOf
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.cache.lookup import CacheStatus
    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.engine.leftovers import Leftovers
    from unicorn_async.engine.opened_model import OpenedModel
    from unicorn_async.engine.step_feed import StepFeed
    from unicorn_async.engine.types import EngineStats, LoadProgress, Token
    from unicorn_async.errors import UnicornError
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.grammar import Grammar
    from unicorn_async.tokenizer import Tokenizer


class Engine(EngineReport):
    """Runs one model on one device; made by `Engine.open`, usable while the model still loads."""

    def __init__(self, model: OpenedModel) -> None:
        from unicorn_async.engine.guides import Guides
        from unicorn_async.engine.loop_opening import make_loop

        super().__init__(model)
        self.config = model.options
        self.recommended_sampling = model.files.sampling
        self._runner = model.runner
        self._guides = Guides(model.tokenizer, model.files.config.vocab_size)
        self._scheduler, self._loop, self._drafter = make_loop(model, self._guides)
        self._lifetime = Lifetime(model, self._loop, self._drafter)
        self._intake = Intake(model, self._scheduler, self._lifetime)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        model: str | Path,
        *,
        device: str | int | None = None,
        config: EngineConfig | None = None,
        vulkan: InstanceStart | None = None,
        leftovers: Leftovers | None = None,
        on_wait: Callable[[str], None] | None = None,
        download: ModelDownload | None = None,
    ) -> AsyncIterator[Engine]:
        """Open a model by its path or its name in the Hugging Face cache; close it at the end of the block.

        "demo" is the bundled model. `device`, an index or a part of a name, goes before the one in `config`. The engine
        takes the instance of `vulkan`, which may have begun earlier. `leftovers` free the GPU's own memory and close
        the device behind the block. `on_wait` is told what it waits for: "files", "device", "memory", "tokenizer".
        With a `download`, which `unicorn serve --pull` makes, the model's files are loaded as they come.

        It returns as soon as the model's files are checked, what all layers use has memory and the tokenizer is made
        (with `skip_tokenizer` there is none, and no token has text or ends an answer): memory for the layers is
        allocated and weights are loaded beside and behind that, and requests run as layers arrive. What makes the load
        fail, memory that runs out on the way too, is raised by `load_progress` and by every request.

        Raises:
            ConfigError: there is no such model, or an option can't work.
            CheckpointError, TokenizerError: the model on disk can't be used.
            DeviceError: there is no such device, or the model does not fit.
            DownloadError: the model's files don't come any more, or are others than were promised.
        """
        config = config or EngineConfig()
        if device is not None:
            config = replace(config, device=str(device))
        async with AsyncExitStack() as stack:
            ending = Ending.of(stack, leftovers)
            ending.last.callback(return_freed_memory)  # the last of all
            async with opening_devices(config, ending, vulkan) as opening:
                await asyncio.to_thread(importlib.import_module, "unicorn_async.engine.opening")
                from unicorn_async.engine.opening import open_model

                work = open_model(model, config, opening, ending, on_wait or (lambda what: None), download)
                try:
                    engine = cls(await run_task(work, on_cancel=ending.stop_waiting))
                except BaseException:
                    ending.stop_waiting()  # what was opened is closed behind its threads
                    raise
            try:
                async with engine._lifetime.running(ending.stop_waiting):
                    yield engine
            finally:
                await engine._guides.close()
                engine._runner.abandon_load()  # a loop that was cancelled before it began can't say so
                engine._keep_memory()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ConfigError: the engine was opened without one.
        """
        return self._intake.tokenizer

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._scheduler.max_context

    @property
    def outages(self) -> dict[str, str]:
        """What can't be had now, and why: `tokenizer`, `long_texts`, `chat_template`, `grammars`, `kv_disk`."""
        store = self._model.kv_store
        return self._guides.outages | ({} if store is None else store.outages)

    @property
    def has_failed(self) -> bool:
        """Whether a failure has ended the engine, or it is closed: it takes no request any more."""
        return self._lifetime.has_ended

    async def failure(self) -> UnicornError:
        """Wait until the engine has failed or is closed, and return why: what every request is refused with then."""
        return await self._lifetime.ended()

    async def load_progress(self) -> AsyncIterator[LoadProgress]:
        """Yield progress until the model is loaded; the last one is done. Several may listen.

        Raises:
            UnicornError: the load failed.
        """
        try:
            async for progress in self._model.stream.watch():
                yield progress
        except EngineClosedError:
            raise await self.failure() from None

    def prompt_layers(self, request_id: str) -> int | None:
        """Return how many of the `layers_active` a request's prompt went through; None unless it follows the load."""
        layers = self._loop.prompt_layers(request_id)
        return None if layers is None else min(layers, self.progress.layers_active)

    async def loaded(self) -> None:
        """Wait until the model is loaded and no step waits for a layer; raises as `load_progress` does."""
        async for _ in self.load_progress():
            pass
        try:
            await self._runner.load_followed()
        except EngineClosedError:
            raise await self.failure() from None
        self._lifetime.check()

    async def cache_grown(self) -> None:
        """Wait until the model is loaded and the KV cache has all the blocks that it will have; raises as `loaded`."""
        await self.loaded()
        await self._loop.growth_ended.wait()
        self._lifetime.check()

    @property
    def predicts(self) -> bool:
        """Whether a layer of the model's own drafts, which predicts a token more."""
        speculation = self._scheduler.speculation
        return speculation is not None and speculation.predicts

    @property
    def predictor_left_out(self) -> str:
        """Why a layer of the model's own does not draft, of which its files have something; "" if they have nothing."""
        return self._model.files.predictor_left_out

    @property
    def draft(self) -> DraftInfo | None:
        """The model that drafts, as it stands now; None without one."""
        files, drafter = self._model.draft, self._drafter
        if files is None or drafter is None:
            return None
        return DraftInfo(files.files.name, self._model.draft_bytes, files.max_context, drafter.is_ready)

    async def draft_loaded(self) -> None:
        """Wait until the draft model is loaded, if there is one; raises as `loaded`, and what its load raises."""
        if self._drafter is not None:
            await self._drafter.is_settled.wait()
        self._lifetime.check()

    async def cache_settled(self) -> CacheStatus:
        """Wait until the model is loaded and its weights are in the cache, or are not going to be; return which.

        Raises:
            UnicornError: what made the load fail.
        """
        await self.loaded()
        await self._model.cache.settled()
        return self.cache

    async def stream(
        self,
        prompt: str | SequenceOf[int],
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        cache_salt: str = "",
        client: str = "",
        prediction: SequenceOf[int] = (),
    ) -> AsyncGenerator[Token, None]:
        """Generate tokens for a text, or for token ids; leaving the loop, or cancelling its task, ends the request.

        `sampling` is greedy without one. Where requests wait for a place, clients take turns. What is computed of the
        prompt is there for later requests with the same `cache_salt` that begin alike, and for no others: how long
        those take could tell what was asked. Where tokens are proposed, those of a `prediction` of the answer are.

        Raises:
            RequestError: at the first iteration, when the request is refused.
            UnicornError: when the load fails, or the engine fails or is closed meanwhile.
        """
        from unicorn_async.engine.request_stream import RequestStream

        sequence = await self._intake.answer(
            prompt,
            sampling or SamplingParams(),
            request_id,
            cache_salt=cache_salt,
            client=client,
            prediction=prediction,
        )
        tokenizer = self.tokenizer if sequence.sampling.stop else self._model.tokenizer
        stream = RequestStream(sequence, tokenizer)
        try:
            if sequence.sampling.grammar is not None:
                await self._guides.begin(sequence)
                self._lifetime.check()
            self._loop.add(stream)
            while True:
                token = await stream.get()
                yield token
                if token.finish_reason is not None:
                    return
        finally:
            self._loop.cancel(sequence)

    def is_waiting(self, request_id: str) -> bool:
        """Whether a request waits for a place beside those that run, for the first time or again."""
        return self._scheduler.is_waiting(request_id)

    async def check_grammar(self, grammar: Grammar, *, client: str = "") -> None:
        """Compile a grammar: a request with it begins at once then. Clients take turns, as in `stream`.

        Raises:
            GrammarError: it can't be used; also where to compile it takes too much time or memory.
            GrammarBusyError, QueueFullError: too many others are compiled.
            GrammarLostError: the process that compiles it ended, or does not answer.
        """
        self._lifetime.check()
        await self._guides.check(grammar, client)
        self._lifetime.check()

    async def logits(self, token_ids: SequenceOf[int]) -> NDArray[np.float32]:
        """Return the logits after every token, (tokens, vocabulary), as the device computed them.

        Raises:
            RequestError: the tokens are refused.
            UnicornError: when the load fails, or the engine fails or is closed meanwhile.
        """
        import numpy as np

        sequence = self._intake.logits(token_ids)
        evaluation = self._loop.add_evaluation(sequence)
        try:
            await evaluation.done
        finally:
            self._loop.cancel(sequence)
        return np.concatenate(evaluation.rows)

    async def embed(
        self,
        prompt: str | SequenceOf[int],
        *,
        dimensions: int | None = None,
        request_id: str | None = None,
        client: str = "",
    ) -> NDArray[np.float32]:
        """Return the embedding of a text, or of token ids: (hidden size), or its first `dimensions`.

        It is made of the model's hidden states behind the last norm, as `pooler` says. A text gets the tokens around
        it that the model's tokenizer puts there. Nothing is sampled, and clients take turns as in `stream`.

        Raises:
            RequestError: the request is refused, also since the model's files ask for what is not supported.
            UnicornError: when the load fails, or the engine fails or is closed meanwhile.
        """
        sequence = await self._intake.embedding(prompt, dimensions, request_id, client=client)
        evaluation = self._loop.add_evaluation(sequence)
        try:
            await evaluation.done
        finally:
            self._loop.cancel(sequence)
        return evaluation.rows[0]

    def stats(self) -> EngineStats:
        """Return counters since the engine was opened, and what it holds now."""
        from unicorn_async.engine.stats import engine_stats
        from unicorn_async.step.runner import Runner

        attention = None if isinstance(self._runner, Runner) else self._runner.stats()
        store = self._model.kv_store
        return engine_stats(self._loop.counters, self._scheduler, attention, None if store is None else store.stats())

    @property
    def steps(self) -> StepFeed:
        """What each step did, for who watches."""
        return self._loop.feed
