"""Options, resolved once at the edge and frozen from there on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from pathlib import Path
from typing import Literal

from unicorn_async.converted import Converted, member_of, path_of
from unicorn_async.errors import ConfigError
from unicorn_async.lora_spec import LoraSpec, lora_specs
from unicorn_async.number_kinds import is_count, is_number
from unicorn_async.pooling import Pooling

BLOCK_SIZES = (8, 16, 32, 64)
LARGE_BLOCK_SIZES = (128, 256, 512)  # with attention on an NPU alone
MAX_PROPOSED = 15  # tokens to one sequence in one step
MAX_PREDICTED = 7  # of these by the model's own layer: what it says of its own tokens gets worse with each
NO_DRAFT = "none"  # in place of a draft model's name
MAX_COUNTED = 8192  # different tokens of prompts that a step counts for repetition penalties and does not compute
MAX_SPECULATING = 4  # sequences that run while anything is proposed: more of them have enough for a device to do
DEFAULT_NUM_SEQS = 32  # in one step


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

    AUTO = "auto"  # where that can be, the text itself, and a layer of the model's own that predicts
    OFF = "off"
    LOOKUP = "lookup"  # the text alone: what stood behind the same tokens before; that layer is not loaded


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


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is opened with; sizes are counts of tokens unless the name says otherwise."""

    device: str | None = None  # index or part of a name; None = the fastest GPU that fits
    model_name: str | None = None  # name to show; None = the directory's, or the one that the model was opened by
    max_context: int | None = None  # tokens of one sequence; None = as the model and the memory allow
    max_num_seqs: int | None = None  # sequences in one step; None = 32, fewer where their states take much memory
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
    kv_host_bytes: int | None = None  # of the host's memory, for blocks that the device's KV cache has no room for
    kv_disk_bytes: int | None = None  # of the disk, for the same, for all models together; it is there for later starts
    prefix_cache: bool = True  # what a request has computed of its prompt is there for those that begin alike
    # who proposes tokens that one step checks together; what comes is the same without
    speculation: Converted[SpeculationMode, Literal["auto", "off", "lookup"]] = Converted(SpeculationMode.AUTO)
    # a smaller model of the same vocabulary that proposes tokens, too: its directory, GGUF file or name in the cache;
    # "none" is for no predictor either
    draft: Path | str | None = None
    # have the model's own layer propose that predicts, if it has one, there is no draft and speculation is auto
    predictor: bool = True
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
        counts = ("max_num_batched_tokens", "max_waiting", "num_frames", "num_load_steps")
        for name in (*counts, "staging_bytes"):
            if not is_count(getattr(self, name)):
                raise ConfigError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)!r}")
        for name in (
            "max_context",
            "max_num_seqs",
            "kv_cache_bytes",
            "vram_bytes",
            "gtt_bytes",
            "num_reader_threads",
            "cache_bytes",
            "kv_host_bytes",
            "kv_disk_bytes",
        ):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise ConfigError(f"{name}: expected a whole number of at least 1, or None, got {value!r}")
        for name in ("device", "model_name"):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigError(f"{name}: expected a string, got {getattr(self, name)!r}")
        for name in (
            "skip_tokenizer",
            "allow_software",
            "validation",
            "time_kernels",
            "weight_cache",
            "tuning",
            "predictor",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        if not is_number(self.submission_budget_s, 0, inf) or not self.submission_budget_s > 0:
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
        if self.draft == NO_DRAFT:
            object.__setattr__(self, "draft", None)
            object.__setattr__(self, "predictor", False)
        if self.draft is not None and (not isinstance(self.draft, Path | str) or not str(self.draft)):
            raise ConfigError(f"draft: expected a model's path or name, got {self.draft!r}")
        if self.draft is not None and self.speculation is SpeculationMode.OFF:
            raise ConfigError(f"draft: {self.draft} would propose tokens, and speculation is off")
        if self.speculation is SpeculationMode.LOOKUP and self.attends_elsewhere:
            raise ConfigError(f"speculation: lookup is not there with attention {self.attention}")
        if self.time_kernels and self.attends_elsewhere:
            raise ConfigError(f"time_kernels: not with attention {self.attention}; step_trace shows both devices")
        for name in ("kv_host_bytes", "kv_disk_bytes"):
            if getattr(self, name) is None:
                continue
            if not self.prefix_cache:
                raise ConfigError(f"{name}: it is for what prompts have in common, and prefix_cache is off")
            if self.attends_elsewhere:
                raise ConfigError(f"{name}: not with attention {self.attention}, whose KV cache is another device's")
        most = self.max_mixed_step_s
        if most not in (None, "auto") and not (is_number(most, 0, inf) and 0 < float(most) < inf):
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
        given |= {"attention": _attention(self.attention), "loras": lora_specs(self.loras)}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def attends_elsewhere(self) -> bool:
        """Whether another device than the model's has the attention and the KV cache, or with auto may have them."""
        return self.attention.kind is not AttentionKind.GPU

    @property
    def predicts(self) -> bool:
        """Whether a layer of the model's own is to propose tokens, where the checkpoint has one."""
        return self._wants_predictor and not self.attends_elsewhere

    @property
    def no_predictor(self) -> str:
        """Why such a layer is left out, where nobody asked for that; "" if it is not."""
        if not self._wants_predictor or not self.attends_elsewhere:
            return ""
        may = " may run" if self.attention.kind is AttentionKind.AUTO else " runs"
        return f"nothing is proposed to a model whose attention{may} elsewhere: attention {self.attention}"

    @property
    def _wants_predictor(self) -> bool:
        return self.predictor and self.draft is None and self.speculation is SpeculationMode.AUTO

    @property
    def keeps_blocks(self) -> bool:
        """Whether blocks of the KV cache are kept outside the device's memory."""
        return self.kv_host_bytes is not None or self.kv_disk_bytes is not None

    @property
    def max_seqs(self) -> int:
        """The most sequences in one step, as far as their states have room."""
        return DEFAULT_NUM_SEQS if self.max_num_seqs is None else self.max_num_seqs

    @property
    def max_sampled(self) -> int:
        """The most tokens that one step samples: one for each sequence, or for each token proposed to a few of them."""
        if self.speculation is SpeculationMode.OFF or self.attends_elsewhere:
            return self.max_seqs
        return max(self.max_seqs, 1 + MAX_PROPOSED)

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


class Activation(Enum):
    """The gate's activation function in a gated FFN.

    The clamped SwiGLU is gpt-oss's: gates g up to 7 become g * sigmoid(1.702 * g), and are multiplied by one more than
    what they are for, which is from -7 to 7.
    """

    GELU_TANH = "gelu_tanh"
    SILU = "silu"
    CLAMPED_SWIGLU = "clamped_swiglu"
