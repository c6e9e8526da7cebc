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
from unicorn_async.config import EngineConfig, SamplingParams
from unicorn_async.engine.devices import Ending, opening_devices
from unicorn_async.engine.intake import Intake
from unicorn_async.engine.lifetime import Lifetime
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.host_pages import return_freed_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from collections.abc import Sequence as SequenceOf
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.cache.lookup import CacheStatus
    from unicorn_async.engine.leftovers import Leftovers
    from unicorn_async.engine.opening import OpenedModel
    from unicorn_async.engine.step_feed import StepFeed
    from unicorn_async.engine.types import AdapterInfo, EngineStats, LoadProgress, Token
    from unicorn_async.errors import UnicornError
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.grammar import Grammar
    from unicorn_async.hybrid.report import AttentionInfo
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.memory.report import MemoryReport
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.pooling import Pooler
    from unicorn_async.step.kernel_times import KernelTime, KernelTimes
    from unicorn_async.tokenizer import Tokenizer


class Engine:
    """Runs one model on one device; made by `Engine.open`, usable while the model still loads."""

    def __init__(self, model: OpenedModel) -> None:
        from unicorn_async.engine.guides import Guides
        from unicorn_async.engine.loop_opening import make_loop

        self.config = model.options
        self.recommended_sampling = model.files.sampling
        self._model = model
        self._runner = model.runner
        self._guides = Guides(model.tokenizer, model.files.config.vocab_size)
        self._scheduler, self._loop = make_loop(model, self._guides)
        self._lifetime = Lifetime(model, self._loop)
        self._intake = Intake(model, self._scheduler, self._lifetime)
        self._last_memory: MemoryReport | None = None  # once the device is closed, and can't be asked

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
    ) -> AsyncIterator[Engine]:
        """Open a model by its path or its name in the Hugging Face cache; close it at the end of the block.

        "demo" is the bundled model. `device`, an index or a part of a name, goes before the one in `config`. The engine
        takes the instance of `vulkan`, which may have begun earlier. `leftovers` free the GPU's own memory and close
        the device behind the block. `on_wait` is told what it waits for: "files", "device", "memory", "tokenizer".

        It returns as soon as the model's files are checked, what all layers use has memory and the tokenizer is made
        (with `skip_tokenizer` there is none, and no token has text or ends an answer): memory for the layers is
        allocated and weights are loaded beside and behind that, and requests run as layers arrive. What makes the load
        fail, memory that runs out on the way too, is raised by `load_progress` and by every request.

        Raises:
            ConfigError: there is no such model, or an option can't work.
            CheckpointError, TokenizerError: the model on disk can't be used.
            DeviceError: there is no such device, or the model does not fit.
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

                work = open_model(model, config, opening, ending, on_wait or (lambda what: None))
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
                engine._last_memory = engine.memory

    @property
    def model_name(self) -> str:
        """The name that the model was opened by, without the path to it."""
        return self._model.name

    @property
    def model_spec(self) -> ModelSpec:
        """The model's shape."""
        return self._model.files.config

    @property
    def device(self) -> DeviceInfo:
        """The device that runs the model."""
        return self._model.device.info

    @property
    def attention(self) -> AttentionInfo:
        """Where the attention runs, and the KV cache lies; its sizes are as of now."""
        return self._model.attention_now()

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The LoRA adapters that are blended into the model's weights, in their order."""
        return self._model.adapters

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ConfigError: the engine was opened without one.
        """
        return self._intake.tokenizer

    @property
    def tokenizer_s(self) -> float:
        """How long it took to make the tokenizer, beside everything else that a start does; 0 without one."""
        return self._model.tokenizer_s

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._scheduler.max_context

    @property
    def kv_cache_bytes(self) -> int:
        """Size that the KV cache grows to on the device; that which it has, where there was no memory for more."""
        return self.attention.kv_cache_bytes

    @property
    def memory(self) -> MemoryReport:
        """What was planned in the device's memory, what is allocated there, and what the driver says of it.

        It is as of now, or of just before the engine was closed.
        """
        return self._last_memory or self._model.memory_report()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernel variants that the model runs on, those still to be compiled for it among them.

        Those of another device that attends are among them, too.
        """
        model = self._model
        own = {request.name for request in model.kernels.requests}.union(model.device.kernels.names)
        return tuple(sorted(own.union(model.far.attention.kernels if model.far is not None else ())))

    @property
    def validation_messages(self) -> tuple[str, ...]:
        """What the validation layers have said, if the engine was opened with them; also after it was closed."""
        return tuple(self._model.instance.validation_messages)

    @property
    def cache(self) -> CacheStatus:
        """How it stands with the model's entry in the cache of device-ready weights."""
        return self._model.cache.status

    @property
    def read_strategy(self) -> ReadStrategy:
        """How the model's files are read, and why."""
        return self._model.stream.strategy

    @property
    def progress(self) -> LoadProgress:
        """How far the model is loaded now."""
        return self._model.stream.progress

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

    @property
    def pooler(self) -> Pooler:
        """How the model's embeddings are made."""
        return self._model.files.pooler

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding: those of a hidden state."""
        return self.model_spec.hidden_size

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
        return engine_stats(self._loop.counters, self._scheduler, attention)

    @property
    def steps(self) -> StepFeed:
        """What each step did, for who watches."""
        return self._loop.feed

    def kernel_times(self) -> tuple[KernelTime, ...]:
        """Return where the steps' time went; empty unless the engine was opened with `time_kernels`."""
        times = self._kernel_times()
        return times.table() if times is not None else ()

    def count_kernel_times(self, *, wanted: bool) -> None:
        """Say whether `kernel_times` has the steps that end from now on: those of a warm-up are of no use there."""
        times = self._kernel_times()
        if times is not None:
            times.counts = wanted

    def _kernel_times(self) -> KernelTimes | None:
        from unicorn_async.step.runner import Runner

        return self._runner.kernel_times if isinstance(self._runner, Runner) else None
