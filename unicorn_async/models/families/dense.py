"""What the config.json files of dense decoders have in common, and the blocks that most of them are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.attention import Attention
from unicorn_async.models.blocks.declarations import Norm
from unicorn_async.models.blocks.embedding import Embedding
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.blocks.head import Head
from unicorn_async.models.blocks.predictor import PredictorInput
from unicorn_async.models.rotary_config import read_rotary, scaled_positions
from unicorn_async.models.spec import Layer, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.config import Activation
    from unicorn_async.models.blocks.block import Block
    from unicorn_async.rotary import RotaryConfig

# Keys that families have for what changes a model's results, with the values that change nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "alibi": (False,),
    "attention_bias": (False,),
    "clip_qkv": (),
    "decoder_sparse_step": (1,),
    "is_causal": (True,),
    "lm_head_bias": (False,),
    "mlp_bias": (False,),
    "mlp_only_layers": ([],),
    "n_routed_experts": (0,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1, 1.0),
    "rotary_pct": (1, 1.0),
    "use_bidirectional_attention": (False,),
    "use_gated_activation": (True,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
}
_LAYER_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of a decoder, which all its layers have, and how its norms count."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    norm_plus_one: bool = False  # norms multiply by 1 + weight
    norm_centred: bool = False  # LayerNorm without biases
    residual_scale: float = 1.0  # of what blocks leave

    @classmethod
    def read(
        cls,
        raw: JsonConfig,
        *,
        head_dim: int | None = None,
        norm_eps: float = 1e-6,
        intermediate_size: int | None = None,
    ) -> Dimensions:
        """Read the keys that most families have; a head has `head_dim` elements where the file does not say it.

        None stands for the hidden size over the heads. An `intermediate_size` that is given is not read.
        """
        num_heads, num_kv_heads = checked_heads(raw)
        hidden_size = raw.count("hidden_size")
        return cls(
            num_layers=raw.num_layers(),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=raw.count("head_dim", head_dim or hidden_size // num_heads or 1),
            intermediate_size=intermediate_size or raw.count("intermediate_size"),
            norm_eps=raw.number("rms_norm_eps", norm_eps),
        )

    def norm(self, name: str, dest: str, size: int | None = None) -> Norm:
        """Return a norm, over the hidden size unless another is given; `name` is without ".weight"."""
        size = self.hidden_size if size is None else size
        return Norm(f"{name}.weight", dest, size, self.norm_eps, self.norm_plus_one, self.norm_centred)

    def attention(
        self,
        rotary: RotaryConfig,
        *,
        window: int = 0,
        softmax_scale: float | None = None,
        norm: str | None = "input_layernorm",
        post_norm: str | None = None,
        qk_norm: bool = False,
        whole_qk_norm: bool = False,
        qkv_bias: bool = False,
        output_bias: bool = False,
        soft_cap: float = 0.0,
        is_fused: bool = False,
        is_interleaved: bool = False,
        has_sinks: bool = False,
    ) -> Attention:
        """Return attention; `norm` and `post_norm` name the norms before and after it, where there are any.

        Norms of q and k are over each head's elements, `whole` ones over those of all heads.
        """
        q_size, k_size = self.head_dim, self.head_dim
        if whole_qk_norm:
            q_size, k_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        has_qk_norm = qk_norm or whole_qk_norm
        return Attention(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            window=window,
            rotary=rotary,
            softmax_scale=self.head_dim**-0.5 if softmax_scale is None else softmax_scale,
            norm=None if norm is None else self.norm(norm, "input_norm"),
            post_norm=None if post_norm is None else self.norm(post_norm, "post_attention_norm"),
            q_norm=self.norm("self_attn.q_norm", "q_norm", q_size) if has_qk_norm else None,
            k_norm=self.norm("self_attn.k_norm", "k_norm", k_size) if has_qk_norm else None,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            soft_cap=soft_cap,
            residual_scale=self.residual_scale,
            is_fused=is_fused,
            is_interleaved=is_interleaved,
            has_sinks=has_sinks,
        )

    def gated_ffn(
        self,
        activation: Activation,
        *,
        norm: str | None = "post_attention_layernorm",
        post_norm: str | None = None,
        is_fused: bool = False,
    ) -> GatedFFN:
        """Return a gated FFN; `norm` and `post_norm` name the norms before and after it, where there are any."""
        return GatedFFN(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            activation=activation,
            norm=None if norm is None else self.norm(norm, "ffn_norm"),
            post_norm=None if post_norm is None else self.norm(post_norm, "post_ffn_norm"),
            is_fused=is_fused,
            residual_scale=self.residual_scale,
        )


def decoder(
    raw: JsonConfig,
    architecture: str,
    sizes: Dimensions,
    layers: Iterable[tuple[Block, ...]],
    *,
    vocab_size: int | None = None,
    max_position: int | None = None,
    tied: bool = False,
    embedding_scale: float = 1.0,
    logit_soft_cap: float = 0.0,
    logit_scale: float = 1.0,
    norm: str = "model.norm",
    names: tuple[tuple[str, str], ...] = (),
) -> ModelSpec:
    """Put layers between embeddings and output head; what is given is the default of a key.

    `norm` is the last norm's name, `names` are those of `Layer`.

    Raises:
        UnsupportedModelError: a key that would change the result was read by nobody, or no layer attends.
    """
    raw.refuse_unread(_NEUTRAL)
    if raw.traits.are_expert_gates_apart:
        layers = [_with_gates_apart(blocks) for blocks in layers]
    vocab_size = raw.count("vocab_size", vocab_size)
    spec = ModelSpec(
        architecture=architecture,
        hidden_size=sizes.hidden_size,
        vocab_size=vocab_size,
        max_position=scaled_positions(raw, raw.count("max_position_embeddings", max_position)),
        embedding=Embedding(vocab_size, sizes.hidden_size, embedding_scale),
        layers=tuple(Layer(blocks, f"model.layers.{number}.", names) for number, blocks in enumerate(layers)),
        head=Head(
            vocab_size,
            sizes.hidden_size,
            norm=sizes.norm(norm, "norm"),
            is_tied=raw.flag("tie_word_embeddings", tied),
            soft_cap=logit_soft_cap,
            scale=logit_scale,
        ),
        bos_token_id=next(iter(raw.token_ids("bos_token_id")), None),
        eos_token_ids=raw.token_ids("eos_token_id"),
    )
    if not spec.attends:
        raise UnsupportedModelError(f"{architecture}: models without attention are not supported")
    return spec


def _with_gates_apart(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    from unicorn_async.models.blocks.experts import Experts  # which most models need not import

    return tuple(
        replace(block, are_gates_apart=True) if isinstance(block, Experts) and not block.is_stacked else block
        for block in blocks
    )


def predictor(
    spec: ModelSpec,
    sizes: Dimensions,
    blocks: Iterable[Block],
    *,
    prefix: str,
    names: Mapping[str, str],
    reads_normed: bool,
) -> Layer:
    """Return a layer of these blocks that predicts a token more.

    `names` are those on disk, behind the prefix, of `embedding_norm`, `hidden_norm`, `head_norm` and `projection`, and
    of the `layer` that leads the blocks' own.
    """
    begun = PredictorInput(
        sizes.hidden_size,
        embedding_norm=sizes.norm(names["embedding_norm"], "embedding_norm"),
        hidden_norm=sizes.norm(names["hidden_norm"], "hidden_norm"),
        head_norm=sizes.norm(names["head_norm"], "head_norm"),
        projection=f"{names['projection']}.weight",
        embedding_scale=spec.embedding.scale,
        reads_normed=reads_normed,
    )
    layer = Layer((begun, *blocks), prefix)
    if not (lead := names["layer"]):
        return layer
    own = {weight.name for block in layer.blocks[1:] for weight in block.weights}
    return replace(layer, names=tuple((name, f"{lead}{name}") for name in sorted(own)))


def plain_decoder(
    raw: JsonConfig,
    architecture: str,
    *,
    windows: tuple[int, ...] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    """Read a pre-norm decoder with a gated FFN; `windows` has a window a layer (0 = global), None: all are global."""
    refuse_ffn_bias(raw)
    sizes = Dimensions.read(raw)
    rotary = read_rotary(raw, sizes.head_dim)
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"))
    layers = (
        (
            sizes.attention(rotary, window=window, qk_norm=qk_norm, qkv_bias=qkv_bias, output_bias=output_bias),
            ffn,
        )
        for window in windows or (0,) * sizes.num_layers
    )
    return decoder(raw, architecture, sizes, layers)


def refuse_ffn_bias(raw: JsonConfig) -> None:
    """Raise UnsupportedModelError for biases in the FFN."""
    if raw.flag("mlp_bias", False):
        raise UnsupportedModelError(f"{raw.where}: mlp_bias: biases in the FFN are not supported")


def checked_heads(
    raw: JsonConfig, *, default_heads: int | None = None, default_kv_heads: int | None = None
) -> tuple[int, int]:
    """Return the numbers of query and of key/value heads, the first a multiple of the second."""
    num_heads = raw.count("num_attention_heads", default_heads)
    num_kv_heads = raw.count("num_key_value_heads", default_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{raw.where}: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    return num_heads, num_kv_heads


def layer_kinds(raw: JsonConfig, num_layers: int, known: tuple[str, ...] = _LAYER_KINDS) -> list[str] | None:
    """Return `layer_types`, one of the `known` for each layer, or None where the key is absent."""
    kinds = raw.texts("layer_types")
    if kinds is None:
        return None
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise UnsupportedModelError(f"{raw.where}: layer_types {unknown} are not supported; known are {known}")
    if len(kinds) != num_layers:
        raise CheckpointError(f"{raw.where}: layer_types: expected {num_layers} entries, got {len(kinds)}")
    return kinds


def local_layers(raw: JsonConfig, num_layers: int, pattern: int) -> list[bool]:
    """Return which layers have a window: by `layer_types`, or all but each `sliding_window_pattern`-th.

    `pattern` is the default of that key.
    """
    kinds = layer_kinds(raw, num_layers)
    if kinds is not None:
        return [kind == "sliding_attention" for kind in kinds]
    pattern = raw.count("sliding_window_pattern", pattern)
    return [(layer + 1) % pattern != 0 for layer in range(num_layers)]


def window_of(raw: JsonConfig) -> int:
    """Return the window that all layers have, 0 where `sliding_window` is absent or null."""
    return raw.count("sliding_window") if raw.has("sliding_window") else 0
