"""What goes in and out of an engine; the server knows it by `EngineAPI` alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unicorn_async.loader.progress import LoadProgress
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.request import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.cache.lookup import CacheStatus
    from unicorn_async.engine.step_feed import StepFeed
    from unicorn_async.errors import UnicornError
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.grammar import Grammar
    from unicorn_async.hybrid.report import AttentionInfo, AttentionStats
    from unicorn_async.kv_store.report import KVStoreStats
    from unicorn_async.lora.adapter import LoraAdapter
    from unicorn_async.memory.report import MemoryReport
    from unicorn_async.tokenizer import Tokenizer

__all__ = ["AdapterInfo", "EngineAPI", "EngineStats", "FinishReason", "LoadProgress", "SamplingParams", "Token"]


class Token(NamedTuple):
    """One generated token.

    `text` is what the token adds to the answer; it is empty while a character or a possible stop string is incomplete,
    and for an end token. `finish_reason` is set on the last token of an answer alone. With log-probabilities,
    `num_unseen` of the latest tokens, this one among them, have nothing in the text: not yet, and on the last token of
    an answer because a stop string cut them off, or because it is an end token; `text_offset` characters of the answer
    come before the first that this one is a part of. Of the prompt, `num_prompt_found` tokens were computed before. Of
    the tokens of a prediction that were proposed so far, `num_predicted_right` were right, and `num_predicted_wrong`
    not.
    """

    id: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, str, float], ...] = ()
    finish_reason: FinishReason | None = None
    num_unseen: int = 0
    num_prompt_found: int = 0
    num_predicted_right: int = 0
    num_predicted_wrong: int = 0
    text_offset: int = 0


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A LoRA adapter that is blended into the weights.

    `ranks` and `scales` are the different ones that its tensors have; a scale is without the adapter's `weight`.
    """

    name: str
    weight: float
    num_tensors: int  # of the model that it changes
    ranks: tuple[int, ...]
    scales: tuple[float, ...]

    @classmethod
    def of(cls, adapter: LoraAdapter) -> AdapterInfo:
        """Describe an adapter on disk."""
        pairs = adapter.pairs.values()
        ranks, scales = sorted({pair.rank for pair in pairs}), sorted({pair.scale for pair in pairs})
        return cls(adapter.name, adapter.weight, len(adapter.pairs), tuple(ranks), tuple(scales))

    def text(self) -> str:
        """Return a line for people."""
        ranks, scales = (", ".join(f"{value:g}" for value in values) for values in (self.ranks, self.scales))
        return f"{self.name}: weight {self.weight:g}, changes {self.num_tensors} tensors, rank {ranks}, scale {scales}"


@dataclass(frozen=True, slots=True)
class DraftInfo:
    """A model that drafts for another one: the device's memory that it may take, and whether it is loaded.

    Answers that are longer than `max_context`, with their prompts, go on without drafts.
    """

    name: str
    nbytes: int
    max_context: int
    is_loaded: bool

    def text(self) -> str:
        """Return what it takes and for whom."""
        return (
            f"{self.name}: {self.nbytes / 1e6:,.0f} MB are kept free for it, loaded behind the model; it drafts for"
            f" prompts and answers of up to {self.max_context} tokens"
        )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine was opened, and what it holds now.

    `blocks_total` are those of the KV cache that there are, `blocks_planned` those that it grows to.
    Of `prompt_tokens`, those of all requests that were begun, `prompt_tokens_found` were computed before.
    Of `proposed_tokens`, which steps computed to see whether answers go on so, `proposed_tokens_right` were right;
    `drafted_tokens` and `drafted_tokens_right` are those among them that a draft model has proposed, or a layer
    of the model's own.
    Of `preemptions`, in which requests lost their places, `fair_preemptions` were for other clients' shares.
    `bounded_steps` are those in which prompts got fewer tokens than there was room for, because sequences decoded.
    `attention` is there where another device attends, `kv_store` where blocks are kept outside the device's memory.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    blocks_planned: int
    steps: int
    tokens_generated: int
    tokens_prefilled: int
    preemptions: int
    host_us_per_step: float
    device_s: float
    bounded_steps: int
    prompt_tokens: int = 0
    prompt_tokens_found: int = 0
    proposed_tokens: int = 0
    proposed_tokens_right: int = 0
    fair_preemptions: int = 0
    drafted_tokens: int = 0
    drafted_tokens_right: int = 0
    attention: AttentionStats | None = None
    kv_store: KVStoreStats | None = None


class EngineAPI(Protocol):
    """What a server or another consumer of tokens may rely on."""

    @property
    def model_name(self) -> str:
        """Name to show: the directory's name, or the name that was asked for."""

    @property
    def device(self) -> DeviceInfo:
        """The device that runs the model."""

    @property
    def attention(self) -> AttentionInfo:
        """Where the attention runs."""

    @property
    def outages(self) -> dict[str, str]:
        """What can't be had now, and why: `tokenizer`, `long_texts`, `chat_template`, `grammars`, `kv_disk`."""

    @property
    def predicts(self) -> bool:
        """Whether a layer of the model's own drafts, which predicts a token more."""

    @property
    def predictor_left_out(self) -> str:
        """Why a layer of the model's own does not draft, of which its files have something; "" if they have nothing."""

    @property
    def draft(self) -> DraftInfo | None:
        """The model that drafts, as it stands now; None without one."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernel variants that the model runs on."""

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The LoRA adapters that are blended into the model's weights, in their order."""

    @property
    def cache(self) -> CacheStatus:
        """How it stands with the model's entry in the cache of device-ready weights."""

    @property
    def memory(self) -> MemoryReport:
        """What was planned in the device's memory, what is allocated there now, and what the driver says of it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def recommended_sampling(self) -> Mapping[str, float]:
        """What the model's files recommend for its sampling, by the names of `SamplingParams`."""

    @property
    def tokenizer_s(self) -> float:
        """How long it took to make the tokenizer, beside everything else that a start does."""

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    @property
    def progress(self) -> LoadProgress:
        """How far the model is loaded now."""

    @property
    def has_failed(self) -> bool:
        """Whether a failure has ended the engine, or it is closed."""

    async def failure(self) -> UnicornError:
        """Wait until the engine has failed or is closed, and return why."""

    def load_progress(self) -> AsyncIterator[LoadProgress]:
        """Yield progress until the model is loaded; raises what made the load fail."""

    def prompt_layers(self, request_id: str) -> int | None:
        """Return how many of the layers that are active a request's prompt went through; None unless it loads."""

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams = ...,
        *,
        request_id: str | None = None,
        cache_salt: str = "",
        client: str = "",
        prediction: Sequence[int] = (),
    ) -> AsyncGenerator[Token, None]:
        """Generate tokens; closing the generator cancels the request. Of those that wait, clients take turns. Only
        requests with the same salt share prefixes. A `prediction` of the answer can make it faster, and changes none.

        Raises:
            RequestError: at the first iteration, when the request is refused.
            UnicornError: when the engine fails or is closed meanwhile.
        """

    def is_waiting(self, request_id: str) -> bool:
        """Whether a request waits for a place beside those that run."""

    async def check_grammar(self, grammar: Grammar, *, client: str = "") -> None:
        """Make sure that a grammar can be used, which may take a moment, and for which clients take turns.

        Raises:
            GrammarError: it can't.
            UnicornError: this can't be found out now.
        """

    async def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after every token, (tokens, vocabulary)."""

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding: those of a hidden state."""

    async def embed(
        self,
        prompt: str | Sequence[int],
        *,
        dimensions: int | None = None,
        request_id: str | None = None,
        client: str = "",
    ) -> NDArray[np.float32]:
        """Return the embedding of a text or of token ids, or its first `dimensions`.

        Raises:
            RequestError: the request is refused, also since the model's files ask for what is not supported.
            UnicornError: when the engine fails or is closed meanwhile.
        """

    @property
    def steps(self) -> StepFeed:
        """What each step does, for who watches."""

    def stats(self) -> EngineStats:
        """Return counters."""
