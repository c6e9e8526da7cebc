"""An engine without a model: scripted tokens, each of which waits for what a test wants it to wait for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from unicorn_async.cache.lookup import CacheState, CacheStatus
from unicorn_async.config import AttentionKind
from unicorn_async.engine.step_feed import StepFeed
from unicorn_async.engine.types import AdapterInfo, DraftInfo, EngineStats, FinishReason, LoadProgress, Token
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.hybrid.report import AttentionInfo
from unicorn_async.memory.report import HeapReport, MemoryReport
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.tokenizer.tokenizer import check_room

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from unicorn_async.errors import UnicornError
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.grammar import Grammar
    from unicorn_async.tokenizer import ChatMessage, Tokenizer

STATS = {
    "running": 1,
    "waiting": 0,
    "blocks_used": 2,
    "blocks_total": 10,
    "blocks_planned": 12,
    "steps": 5,
    "tokens_generated": 7,
    "attention": None,
}


T = TypeVar("T")


class FakeTokenizer:
    """Makes one token of each word; remembers the conversations that it was asked to encode."""

    def __init__(self) -> None:
        self.has_chat_template = True
        self.vocab_size = 100_000
        self.pieces: dict[int, bytes] = {}
        self.thinks = False
        self.thinking_marks = ("<think>", "</think>")
        self.chat_template: str | None = None
        self.control: dict[str, int] = {}
        self.template_names: frozenset[str] = frozenset()
        self.options: list[dict[str, object]] = []
        self.texts: list[tuple[str, bool, bool]] = []
        self.conversations: list[tuple[ChatMessage, ...]] = []

    def control_id(self, text: str) -> int | None:
        return self.control.get(text)

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        add_eos: bool = False,
        with_control: bool = False,
        max_context: int | None = None,
    ) -> list[int]:
        self.texts.append((text, add_bos, with_control))
        return check_room(list(range(len(text.split()) + add_eos)), max_context)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def chat_text(self, messages: Sequence[ChatMessage], **options: object) -> str:
        self.encode_chat(messages, **options)
        return "".join(f"[{message.role}]{message.content}" for message in messages)

    def encode_chat(self, messages: Sequence[ChatMessage], **options: object) -> list[int]:
        self.conversations.append(tuple(messages))
        max_context = cast("int | None", options.pop("max_context", None))
        self.options.append(options)
        words = [word for message in messages for word in (message.role, *message.content.split())]
        return check_room(list(range(len(words))), max_context)

    def hasty(self) -> FakeTokenizer:
        return self

    async def encode_soon(
        self,
        encode: Callable[[FakeTokenizer], T],
        run: Callable[[Callable[[], T]], Awaitable[T]],
    ) -> T:
        return await run(lambda: encode(self))

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces.get(token_id, f"<{token_id}>".encode())


@dataclass(frozen=True, slots=True)
class FakeDevice:
    name: str = "Fake GPU"
    type: DeviceType = DeviceType.SOFTWARE
    driver_name: str = "fake driver"
    driver_info: str = "1.2.3"
    is_software: bool = True


@dataclass(slots=True)
class Call:
    """One call of `stream`."""

    prompt: str | Sequence[int]
    sampling: SamplingParams
    request_id: str | None
    client: str = ""
    cache_salt: str = ""
    prediction: Sequence[int] = ()
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    given: int = 0


def words(text: str, reason: FinishReason = FinishReason.STOP) -> list[Token]:
    """Return a script: each word with its space as one token, then a token without text that ends the answer."""
    pieces = [word if not index else f" {word}" for index, word in enumerate(text.split(" "))]
    return [Token(index, piece) for index, piece in enumerate(pieces)] + [Token(99, "", finish_reason=reason)]


class FakeEngine:
    """Answers every request with `script`, held up where the test says so.

    `hold` maps a token's index to an event that has to be set before the token comes; `fail` maps one to an error that
    comes in its place; `refuse` is raised at once. While `loaded` is not set, no token comes.
    """

    model_name = "fake-model"
    attention = AttentionInfo(AttentionKind.GPU, "Fake GPU", is_software=True)
    kernels = ("linear_vec_fake", "rms_norm")
    cache = CacheStatus(CacheState.HIT, "made from /models/fake", "0f" * 16, 100, 0)
    memory = MemoryReport((HeapReport(HeapKind.VRAM, 1000, 1100, 1200),))
    tokenizer_s = 0.25
    embedding_size = 6
    adapters = (AdapterInfo("poet", 0.5, 14, (4, 8), (2.0,)),)
    predicts = True
    predictor_left_out = ""
    draft = DraftInfo("small", 1 << 20, 4096, is_loaded=True)

    def __init__(self, text: str = "Hello there, friend") -> None:
        self.script = words(text)
        self.hold: dict[int, asyncio.Event] = {}
        self.fail: dict[int, Exception] = {}
        self.refuse: Exception | None = None
        self.refuse_after = 0  # so many calls are taken
        self.recommended_sampling: Mapping[str, float] = {}
        self.next_script: Callable[[], list[Token]] = lambda: self.script
        self.load_failure: Exception | None = None
        self.failed: asyncio.Future[UnicornError] = asyncio.get_running_loop().create_future()
        self.max_context = 1000
        self.fake_tokenizer = FakeTokenizer()
        self.outages: dict[str, str] = {}
        self.fake_device = FakeDevice()
        self.calls: list[Call] = []
        self.grammars: list[Grammar] = []
        self.grammar_clients: list[str] = []
        self.refused_grammar: Exception | None = None
        self.compiling: asyncio.Event | None = None  # what grammars wait for
        self.called = asyncio.Event()
        self.loaded = asyncio.Event()
        self.loaded.set()
        self.bytes_total = 100
        self.bytes_loaded = 0
        self.num_layers = 4
        self.layers_active = 1
        self.load_seconds = 0.5
        self.prompts: dict[str, int] = {}
        self.waiting: set[str] = set()
        self.load_moved = asyncio.Condition()
        self.scheduler = Scheduler(
            groups=(BlockGroup(0, 8),),
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_context=32,
            max_waiting=4,
            max_logit_rows=8,
            eos_token_ids=(),
        )
        self.steps = StepFeed(self.scheduler)

    @property
    def tokenizer(self) -> Tokenizer:
        return cast("Tokenizer", self.fake_tokenizer)

    @property
    def device(self) -> DeviceInfo:
        return cast("DeviceInfo", self.fake_device)

    @property
    def progress(self) -> LoadProgress:
        done = self.loaded.is_set()
        return LoadProgress(
            self.bytes_total,
            self.bytes_total if done else self.bytes_loaded,
            self.num_layers,
            self.num_layers if done else self.layers_active,
            self.load_seconds,
            done,
        )

    async def set_loaded(self, nbytes: int) -> None:
        """Go on with the load; `bytes_total` are all."""
        async with self.load_moved:
            self.bytes_loaded = nbytes
            if nbytes >= self.bytes_total:
                self.loaded.set()
            self.load_moved.notify_all()

    async def fail_load(self, error: Exception) -> None:
        async with self.load_moved:
            self.load_failure = error
            self.load_moved.notify_all()

    async def load_progress(self) -> AsyncIterator[LoadProgress]:
        while True:
            progress = self.progress
            yield progress
            if progress.done:
                return
            async with self.load_moved:
                while self.progress == progress and self.load_failure is None:
                    await self.load_moved.wait()
            if self.load_failure is not None:
                raise self.load_failure

    @property
    def has_failed(self) -> bool:
        return self.failed.done()

    async def failure(self) -> UnicornError:
        return await asyncio.shield(self.failed)

    def prompt_layers(self, request_id: str) -> int | None:
        return self.prompts.get(request_id)

    async def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams = SamplingParams(),  # noqa: B008
        *,
        request_id: str | None = None,
        client: str = "",
        cache_salt: str = "",
        prediction: Sequence[int] = (),
    ) -> AsyncGenerator[Token, None]:
        if self.refuse is not None and len(self.calls) >= self.refuse_after:
            raise self.refuse
        call = Call(prompt, sampling, request_id, client, cache_salt, prediction)
        self.calls.append(call)
        self.called.set()
        try:
            await self.loaded.wait()
            for index, token in enumerate(self.next_script()):
                if index in self.hold:
                    await self.hold[index].wait()
                if index in self.fail:
                    raise self.fail[index]
                call.given += 1
                if call.given >= sampling.max_tokens and token.finish_reason is None:
                    yield Token(token.id, token.text, token.logprob, token.top_logprobs, FinishReason.LENGTH)
                    return
                yield token
        finally:
            call.closed.set()

    def is_waiting(self, request_id: str) -> bool:
        return request_id in self.waiting

    async def check_grammar(self, grammar: Grammar, *, client: str = "") -> None:
        self.grammars.append(grammar)
        self.grammar_clients.append(client)
        if self.compiling is not None:
            await self.compiling.wait()
        if self.refused_grammar is not None:
            raise self.refused_grammar

    async def embed(
        self,
        prompt: str | Sequence[int],
        *,
        dimensions: int | None = None,
        request_id: str | None = None,
        client: str = "",
    ) -> NDArray[np.float32]:
        if self.refuse is not None:
            raise self.refuse
        call = Call(prompt, SamplingParams(), request_id, client)
        self.calls.append(call)
        self.called.set()
        try:
            await self.loaded.wait()
            if 0 in self.hold:
                await self.hold[0].wait()
            if 0 in self.fail:
                raise self.fail[0]
            values = np.arange(self.embedding_size, dtype=np.float32) + len(prompt)
            return values[: dimensions or self.embedding_size] / 8
        finally:
            call.closed.set()

    async def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.zeros((len(token_ids), 4), dtype=np.float32)

    def stats(self) -> EngineStats:
        names = [name for name in EngineStats.__dataclass_fields__ if name not in ("attention", "kv_store")]
        return EngineStats(**{name: STATS.get(name, 0) for name in names})
