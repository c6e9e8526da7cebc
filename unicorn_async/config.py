"""Options, resolved once at the edge and frozen from there on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from pathlib import Path
from typing import Literal

from unicorn_async.converted import Converted, member_of, path_of
from unicorn_async.errors import ConfigError
from unicorn_async.grammar import Grammar
from unicorn_async.pooling import Pooling

BLOCK_SIZES = (8, 16, 32, 64)
LARGE_BLOCK_SIZES = (128, 256, 512)  # with attention on an NPU alone
MAX_TOP_LOGPROBS = 20
MAX_TOP_K = 1024
MAX_BIAS = 100.0  # magnitude of a token's bias
MAX_LOGIT_BIASES = 1024
MAX_BIASED_TOKENS = 1536  # of one request: those with a bias, and those that would end its answer too early
MAX_LORA_WEIGHT = 1000.0  # magnitude
MAX_LORAS = 32
MAX_PROPOSED = 15  # tokens to one sequence in one step
_BIASES = f"up to {MAX_LOGIT_BIASES} numbers by token id, {-MAX_BIAS:g} to {MAX_BIAS:g}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _are_strings(values: object, most: int) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= most
        and all(isinstance(value, str) and 0 < len(value) <= 1024 for value in values)
    )


def _are_biases(values: object) -> bool:
    if not isinstance(values, tuple) or len(values) > MAX_LOGIT_BIASES:
        return False
    pairs = (item for item in values if isinstance(item, tuple) and len(item) == 2)
    found = {key: value for key, value in pairs if _is_whole(key) and key >= 0}
    return len(found) == len(values) and all(_is_number(value, -MAX_BIAS, MAX_BIAS) for value in found.values())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class KVDType(Enum):
    """Element type of the key/value cache."""

    F16 = "f16"
    F32 = "f32"
    INT8 = "int8"  # with an f16 scale for each 32 elements of a head


class WeightScheme(Enum):
    """What becomes of a checkpoint's weights on their way to the device."""

    AUTO = "auto"  # what they are
    F16 = "f16"
    INT8 = "int8"  # blocks of 32
    INT4 = "int4"  # blocks of 32; embeddings and output head int8
    NF4 = "nf4"  # blocks of 64; embeddings and output head int8


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """A LoRA adapter to blend into the weights, and how much of it: `weight` multiplies its own scale."""

    path: Converted[Path, str] = Converted()  # its directory, or its name in the Hugging Face cache
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> LoraSpec:
        """Parse DIR or DIR=WEIGHT, where a name in the Hugging Face cache may stand for the directory.

        Raises:
            ConfigError: the weight is no moderate number.
        """
        name, separator, weight = text.rpartition("=")
        if not separator or Path(text).expanduser().is_dir():
            return cls(text)
        try:
            return cls(name, float(weight))
        except (ValueError, ConfigError) as exc:
            raise ConfigError(f"expected DIR or DIR=WEIGHT with a number, got {text!r}") from exc

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", path_of("adapter", self.path))
        if not _is_number(self.weight, -MAX_LORA_WEIGHT, MAX_LORA_WEIGHT):
            raise ConfigError(f"adapter {self.path}: weight: expected a number of at most 1000, got {self.weight!r}")


class AttentionKind(Enum):
    """What computes the attention."""

    GPU = "gpu"  # the device that runs the model
    VULKAN = "vulkan"  # another Vulkan device
    NPU = "npu"
    AUTO = "auto"  # the GPU, or the NPU where steps are faster with it; an opened engine has one of the two


@dataclass(frozen=True, slots=True)
class AttentionTarget:
    """Where the attention runs and the KV cache lies; `device` is a Vulkan device's index or a part of its name."""

    kind: AttentionKind = AttentionKind.GPU
    device: str = ""

    @classmethod
    def parse(cls, text: str) -> AttentionTarget:
        """Parse gpu, npu, auto, or vulkan:DEVICE.

        Raises:
            ConfigError: it is none of them.
        """
        name, colon, device = text.partition(":")
        if name == AttentionKind.VULKAN.value and device.strip():
            return cls(AttentionKind.VULKAN, device.strip())
        kinds = {kind.value: kind for kind in AttentionKind if kind is not AttentionKind.VULKAN}
        if colon or name not in kinds:
            raise ConfigError(
                f"attention: expected gpu, npu, auto, or vulkan:DEVICE (see `unicorn devices`), got {text!r}"
            )
        return cls(kinds[name])

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.device}" if self.device else self.kind.value


class SplitMode(Enum):
    """Whether a step's batch is split in two halves that two devices work on in turns."""

    AUTO = "auto"  # where it was measured to be faster
    ALWAYS = "always"  # wherever there is something to split
    NEVER = "never"


class SpeculationMode(Enum):
    """Who proposes tokens, of which a step checks several at once."""

    AUTO = "auto"  # lookup where that can be
    OFF = "off"
    LOOKUP = "lookup"  # the text itself: what stood behind the same tokens before


class ExchangeKind(Enum):
    """How what one device writes comes to another."""

    SHARED = "shared"  # one allocation of the host, imported by both
    COPIED = "copied"  # the host copies between mapped memory of both


def _attention(value: object) -> AttentionTarget:
    if isinstance(value, AttentionTarget):
        return value
    if isinstance(value, str):
        return AttentionTarget.parse(value)
    raise ConfigError(f"attention: expected an AttentionTarget or a string, got {value!r}")


def _adapters(values: object) -> tuple[LoraSpec, ...]:
    if not isinstance(values, tuple) or not all(isinstance(value, LoraSpec | Path | str) for value in values):
        raise ConfigError(f"loras: expected a tuple of LoraSpec, paths or texts DIR=WEIGHT, got {values!r}")
    try:
        specs = (LoraSpec.parse(value) if isinstance(value, str) else value for value in values)
        return tuple(LoraSpec(spec) if isinstance(spec, Path) else spec for spec in specs)
    except ConfigError as exc:
        raise ConfigError(f"loras: {exc}") from exc


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is opened with; sizes are counts of tokens unless the name says otherwise."""

    device: str | None = None  # index or part of a name; None = the fastest GPU that fits
    model_name: str | None = None  # name to show; None = the directory's, or the one that the model was opened by
    max_context: int | None = None  # tokens of one sequence; None = as the model and the memory allow
    max_num_seqs: int = 32  # sequences in one step
    max_num_batched_tokens: int = 512  # tokens in one step; longer prompts are chunked
    max_waiting: int = 256  # requests that may wait for a place
    block_size: int = 16  # tokens of one KV-cache block; with attention on an NPU 64 at least
    num_frames: int = 2  # steps in flight
    num_load_steps: int = 64  # steps in flight at most while layers are missing: fewer where memory is short
    kv_dtype: Converted[KVDType, Literal["f16", "f32", "int8"]] = Converted(KVDType.F16)  # an NPU's cache is bf16
    weights: Converted[WeightScheme, Literal["auto", "f16", "int8", "int4", "nf4"]] = Converted(WeightScheme.AUTO)
    # adapters to blend into the weights, in this order; text is DIR or DIR=WEIGHT
    loras: Converted[tuple[LoraSpec, ...], tuple[LoraSpec | Path | str, ...]] = Converted(())
    kv_cache_bytes: int | None = None  # None = what is left of the budget, within reason
    vram_bytes: int | None = None  # at most so much of the device's own memory; None = what is free
    gtt_bytes: int | None = None  # of the host's; None = what is free on a GPU that shares it, nothing on others
    max_mixed_step_s: float | Literal["auto"] | None = "auto"  # of a step with prompts beside answers; None = no limit
    submission_budget_s: float = 1.0  # no submission to a queue should run longer
    skip_tokenizer: bool = False  # token ids in and out, without text: a start need not wait for the tokenizer
    allow_software: bool = False  # take a software device where there is no GPU
    validation: bool = False  # Vulkan's validation layers
    time_kernels: bool = False  # measure every dispatch, which slows them down
    num_reader_threads: int | None = None  # None = by the number of cores
    staging_bytes: int = 256 << 20  # ring of mapped staging memory
    weight_cache: bool = True  # keep weights that were quantised or blended in device layout, and take them from there
    cache_bytes: int | None = None  # of all models in the weight cache; None = 64 GiB, or half of what is free
    prefix_cache: bool = True  # what a request has computed of its prompt is there for those that begin alike
    # who proposes tokens that one step checks together; what comes is the same without
    speculation: Converted[SpeculationMode, Literal["auto", "off", "lookup"]] = Converted(SpeculationMode.AUTO)
    pooling: Converted[Pooling | None, Literal["mean", "last"]] = Converted(None)  # of embeddings; None = as files say
    tuning: bool = True  # choose kernels by what `unicorn tune` has measured on the device, where it has
    # file to write a trace of the load to, for the Perfetto UI
    load_trace: Converted[Path | None, str] = Converted(None)
    # where the attention runs; text is gpu, npu, auto or vulkan:DEVICE
    attention: Converted[AttentionTarget, str] = Converted(AttentionTarget())
    # with attention elsewhere alone
    attention_split: Converted[SplitMode, Literal["auto", "always", "never"]] = Converted(SplitMode.AUTO)
    # with attention elsewhere alone; None = shared where that can be
    attention_exchange: Converted[ExchangeKind | None, Literal["shared", "copied"]] = Converted(None)
    # file to write a trace of the last steps to; with attention elsewhere alone
    step_trace: Converted[Path | None, str] = Converted(None)

    def __post_init__(self) -> None:
        self._convert()
        counts = ("max_num_seqs", "max_num_batched_tokens", "max_waiting", "num_frames", "num_load_steps")
        for name in (*counts, "staging_bytes"):
            if not _is_count(getattr(self, name)):
                raise ConfigError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)!r}")
        for name in ("max_context", "kv_cache_bytes", "vram_bytes", "gtt_bytes", "num_reader_threads", "cache_bytes"):
            value = getattr(self, name)
            if value is not None and not _is_count(value):
                raise ConfigError(f"{name}: expected a whole number of at least 1, or None, got {value!r}")
        if len(self.loras) > MAX_LORAS:
            raise ConfigError(f"loras: expected at most {MAX_LORAS} adapters, got {len(self.loras)}")
        for name in ("device", "model_name"):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigError(f"{name}: expected a string, got {getattr(self, name)!r}")
        for name in ("skip_tokenizer", "allow_software", "validation", "time_kernels", "weight_cache", "tuning"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        if not _is_number(self.submission_budget_s, 0, inf) or not self.submission_budget_s > 0:
            raise ConfigError(f"submission_budget_s: expected more than 0, got {self.submission_budget_s!r}")
        for name, value in (
            ("attention_split", self.attention_split is not SplitMode.AUTO),
            ("attention_exchange", self.attention_exchange is not None),
            ("step_trace", self.step_trace is not None),
        ):
            if value and not self.attends_elsewhere:
                raise ConfigError(f"{name}: it is for attention on another device, and attention is on the GPU")
            if value and self.attention.kind is AttentionKind.AUTO:
                raise ConfigError(f"{name}: it is for attention on another device, and auto may leave it on the GPU")
        if self.speculation is SpeculationMode.LOOKUP and self.attends_elsewhere:
            raise ConfigError(f"speculation: lookup is not there with attention {self.attention}")
        if self.time_kernels and self.attends_elsewhere:
            raise ConfigError(f"time_kernels: not with attention {self.attention}; step_trace shows both devices")
        most = self.max_mixed_step_s
        if most not in (None, "auto") and not (_is_number(most, 0, inf) and 0 < float(most) < inf):
            raise ConfigError(f'max_mixed_step_s: expected more than 0, "auto" or None, got {most!r}')
        if self.attention.kind is AttentionKind.NPU and self.kv_dtype is not KVDType.F16:
            raise ConfigError(f"kv_dtype: the NPU's cache is bf16, {self.kv_dtype.value} can't be asked for")
        if self.block_size in LARGE_BLOCK_SIZES and self.attention.kind is not AttentionKind.NPU:
            raise ConfigError(f"block_size: {self.block_size} is for attention npu, got {self.attention}")
        if self.block_size not in (*BLOCK_SIZES, *LARGE_BLOCK_SIZES):
            sizes = ", ".join(map(str, LARGE_BLOCK_SIZES))
            raise ConfigError(
                f"block_size: expected 8, 16, 32 or 64, or with attention npu {sizes}, got {self.block_size!r}"
            )

    def _convert(self) -> None:
        """Make of every option that was given as text what it means."""
        names: dict[str, type[Enum]] = {
            "kv_dtype": KVDType,
            "weights": WeightScheme,
            "attention_split": SplitMode,
            "speculation": SpeculationMode,
        }
        optional: dict[str, type[Enum]] = {"attention_exchange": ExchangeKind, "pooling": Pooling}
        names |= {name: kind for name, kind in optional.items() if getattr(self, name) is not None}
        given: dict[str, object] = {name: member_of(kind, name, getattr(self, name)) for name, kind in names.items()}
        given |= {
            name: path_of(name, path)
            for name, path in (("load_trace", self.load_trace), ("step_trace", self.step_trace))
            if path is not None
        }
        given |= {"attention": _attention(self.attention), "loras": _adapters(self.loras)}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def attends_elsewhere(self) -> bool:
        """Whether another device than the model's has the attention and the KV cache, or with auto may have them."""
        return self.attention.kind is not AttentionKind.GPU

    @property
    def max_sampled(self) -> int:
        """The most tokens that one step samples: one for each sequence, or for each token proposed to a few of them."""
        if self.speculation is SpeculationMode.OFF or self.attends_elsewhere:
            return self.max_num_seqs
        return max(self.max_num_seqs, 1 + MAX_PROPOSED)

    @property
    def max_frames(self) -> int:
        """The most steps that are ever in flight."""
        return self.num_frames if self.attends_elsewhere else max(self.num_frames, self.num_load_steps)

    @property
    def num_residuals(self) -> int:
        """The most steps, or halves of steps, of a loaded model that have something on the device between two layers.

        Where steps take turns at a load's layers there is one more, for the step whose turn it is.
        """
        return 2 if self.attends_elsewhere else self.num_frames + 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens of one request are chosen, and when it ends. The defaults are greedy.

    temperature 0 is greedy. `top_k` 0 and `top_p` 1 switch those filters off, as does `min_p` 0. The order is
    penalties, temperature, top-k, top-p, min-p. `repetition_penalty` (1 = off) counts prompt and output, as in
    transformers; `presence_penalty` and `frequency_penalty` (0 = off) count the output alone, as in OpenAI's API.
    `seed` None draws one. `top_logprobs` None gives no log-probabilities, 0 the chosen token's alone. Log-probabilities
    are of the model's distribution, before penalties and temperature.

    `logit_bias` has a number for each of up to 1,024 tokens, -100 to 100, which is added to the token's logit before
    anything else; -100 bans the token. Before the answer has `min_tokens` neither end tokens nor `stop_token_ids` come,
    and nothing in it is taken for a `stop` string. Log-probabilities are those after both.

    With a `grammar` only tokens are chosen with which the answer can still become what it describes: for all of the
    above, log-probabilities too, the others are not there, so that there may be fewer than `top_logprobs`.
    It goes before bans: what alone fits it comes, banned or not.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    min_tokens: int = 0
    logit_bias: Converted[tuple[tuple[int, float], ...], Mapping[int, float]] = Converted(())

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        checks: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", _is_count(self.max_tokens), "a whole number of at least 1"),
            ("min_tokens", _is_whole(self.min_tokens) and self.min_tokens >= 0, "a whole number of at least 0"),
            ("temperature", _is_number(self.temperature, 0.0, 100.0), "0 to 100"),
            ("top_k", _is_whole(self.top_k) and 0 <= self.top_k <= MAX_TOP_K, f"a whole number, 0 to {MAX_TOP_K}"),
            ("top_p", _is_number(self.top_p, 0.0, 1.0) and self.top_p > 0, "more than 0, at most 1"),
            ("min_p", _is_number(self.min_p, 0.0, 1.0), "0 to 1"),
            (
                "repetition_penalty",
                _is_number(self.repetition_penalty, 0.0, 100.0) and self.repetition_penalty > 0,
                "more than 0, at most 100",
            ),
            ("presence_penalty", _is_number(self.presence_penalty, -2.0, 2.0), "-2 to 2"),
            ("frequency_penalty", _is_number(self.frequency_penalty, -2.0, 2.0), "-2 to 2"),
            (
                "seed",
                self.seed is None or (_is_whole(self.seed) and 0 <= self.seed < 1 << 64),
                "a whole number, 0 to 2**64 - 1",
            ),
            ("stop", _are_strings(self.stop, 16), "a tuple of up to 16 strings of 1 to 1024 characters"),
            (
                "stop_token_ids",
                isinstance(self.stop_token_ids, tuple) and all(_is_whole(i) and i >= 0 for i in self.stop_token_ids),
                "a tuple of token ids",
            ),
            ("ignore_eos", isinstance(self.ignore_eos, bool), "True or False"),
            (
                "top_logprobs",
                self.top_logprobs is None
                or (_is_whole(self.top_logprobs) and 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS),
                f"a whole number, 0 to {MAX_TOP_LOGPROBS}",
            ),
            ("logit_bias", _are_biases(self.logit_bias), _BIASES),
            ("grammar", self.grammar is None or isinstance(self.grammar, Grammar), "a Grammar"),
        )
        for name, good, wanted in checks:
            if not good:
                raise ConfigError(f"{name}: expected {wanted}, got {getattr(self, name)!r}")

    @property
    def has_biases(self) -> bool:
        """Whether single tokens may have biases, or be banned, at one of its steps."""
        return bool(self.logit_bias) or self.min_tokens > 0

    @property
    def has_penalties(self) -> bool:
        """Whether the request needs counts of the tokens that it has seen."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class Activation(Enum):
    """The gate's activation function in a gated FFN."""

    GELU_TANH = "gelu_tanh"
    SILU = "silu"
