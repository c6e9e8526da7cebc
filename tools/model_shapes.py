"""Sizes of real models, for files of random weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearHeads:
    """Heads of linear attention by the gated delta rule, and the taps of the convolution in front of it."""

    keys: int
    values: int
    dim: int = 128
    taps: int = 4

    @property
    def value_columns(self) -> int:
        """Elements of a token's values."""
        return self.values * self.dim

    @property
    def columns(self) -> int:
        """Elements of a token's queries, keys and values."""
        return 2 * self.keys * self.dim + self.value_columns


@dataclass(frozen=True, slots=True)
class MambaHeads:
    """Heads of Mamba-2, what they keep of each element, and the taps of the convolution in front of them."""

    count: int
    dim: int = 64
    state: int = 128
    groups: int = 1  # of heads with the same keys and queries
    taps: int = 4

    @property
    def inner(self) -> int:
        """Elements of a token's values, and of its gates."""
        return self.count * self.dim

    @property
    def columns(self) -> int:
        """Elements of a token that the convolution sees: values, keys and queries."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class Latents:
    """Elements of the latents of latent attention, and of its heads."""

    query: int  # of the latent that queries are made of
    kept: int  # of the latent that is kept of a token, for its keys and values
    plain: int  # of a head's keys, which have no position
    rotary: int  # of the keys that all heads share, which have one
    value: int

    @property
    def key(self) -> int:
        """Elements of a head's query and keys."""
        return self.plain + self.rotary


@dataclass(frozen=True, slots=True)
class Ranks:
    """How wide the small networks of RWKV-7 are: of the decay, of the rate, of the blend of values, of the gate."""

    decay: int
    rate: int
    blend: int
    gate: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What the sizes of a model are."""

    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    window: int = 0
    experts: int = 0  # of each layer; 0: a dense feed-forward network
    experts_used: int = 0  # by a token
    expert_ffn: int = 0
    shared_ffn: int = 0  # of an expert that all tokens have; 0: there is none
    dense_layers: int = 0  # the first ones, without experts
    linear: LinearHeads | None = None  # of all layers but each fourth, which attends behind a gate
    mamba: MambaHeads | None = None  # of all layers but each tenth, the sixth being the first of these
    latents: Latents | None = None  # of attention in all layers
    ranks: Ranks | None = None  # of a model without attention

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalised in each head."""
        return self.model_type.startswith(("gemma3", "qwen3"))

    @property
    def query_rows(self) -> int:
        """Rows of the projection to queries, their gates among them."""
        return self.heads * self.head_dim * (1 if self.linear is None else 2)

    def attends(self, layer: int) -> bool:
        """Whether a layer has keys and values."""
        if self.mamba is not None:
            return layer % MAMBA_PERIOD == FIRST_ATTENDING
        return self.ranks is None and (self.linear is None or layer % ATTENDING == ATTENDING - 1)


ATTENDING = 4  # of so many layers the last attends, where others have linear attention
MAMBA_PERIOD, FIRST_ATTENDING = 10, 5  # of so many layers this one attends, where others are of Mamba-2
ROTARY_PART, ROTARY_SECTIONS, ROTARY_BASE = 0.25, (11, 11, 10), 1e7  # of models with linear attention
SHAPES = {
    "gemma3-27b": Shape("Gemma3ForConditionalGeneration", "gemma3", 5376, 62, 32, 16, 128, 21504, 262208, True, 1024),
    "gemma3-4b": Shape("Gemma3ForConditionalGeneration", "gemma3", 2560, 34, 8, 4, 256, 10240, 262208, True, 1024),
    "gemma3-1b": Shape("Gemma3ForCausalLM", "gemma3_text", 1152, 26, 4, 1, 256, 6912, 262144, True, 512),
    "llama-8b": Shape("LlamaForCausalLM", "llama", 4096, 32, 32, 8, 128, 14336, 128256, False),
    "llama-135m": Shape("LlamaForCausalLM", "llama", 576, 30, 9, 3, 64, 1536, 49152, True),
    "qwen3-0.6b": Shape("Qwen3ForCausalLM", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, True),
    "qwen3-30b-a3b": Shape(
        "Qwen3MoeForCausalLM", "qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, False, 0, 128, 8, 768
    ),
    "qwen3.5-27b": Shape(
        *("Qwen3_5ForCausalLM", "qwen3_5_text", 5120, 64, 24, 4, 256, 17408, 248320, False),
        linear=LinearHeads(16, 48),
    ),
    "qwen3.5-35b-a3b": Shape(
        *("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 2048, 40, 16, 2, 256, 512, 248320, False, 0, 256, 8, 512),
        shared_ffn=512,
        linear=LinearHeads(16, 32),
    ),
    "rwkv7-2.9b": Shape(
        *("RWKV7ForCausalLM", "rwkv7", 2560, 32, 40, 40, 64, 10240, 65536, False),
        ranks=Ranks(96, 96, 64, 320),
    ),
}
