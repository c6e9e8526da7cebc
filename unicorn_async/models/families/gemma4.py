"""Gemma 4, text.

Source: the models' config.json and transformers' `modeling_gemma4.py`. Keys that a released config.json leaves out have
the defaults of transformers' `Gemma4TextConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.declarations import vector
from unicorn_async.models.blocks.dense_and_experts import DenseAndExperts
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.blocks.layer_input import LayerInput, layer_tables
from unicorn_async.models.families.dense import layer_kinds
from unicorn_async.models.families.gemma import gemma_decoder, gemma_ffn, gemma_sizes
from unicorn_async.models.rotary_config import read_layer_rotary, read_section_rotary
from unicorn_async.ops.routing import Routing
from unicorn_async.rotary import RotaryConfig

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.blocks.attention import Attention
    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.families.dense import Dimensions
    from unicorn_async.models.spec import ModelSpec

_PATTERN = 6  # the last of so many layers sees everything
_NAMES = (
    ("mlp.gate", "router.proj"),
    ("mlp.gate.per_expert_scale", "router.per_expert_scale"),
    ("mlp.experts", "experts"),
)
_PER_LAYER = "per_layer_config"  # what transformers writes in place of the keys of global layers


def gemma4_text(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `Gemma4ForCausalLM`."""
    return _decoder(raw, "Gemma4ForCausalLM")


def gemma4_multimodal(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Gemma4ForConditionalGeneration`."""
    return _decoder(raw.section("text_config"), "Gemma4ForConditionalGeneration")


def _decoder(raw: JsonConfig, architecture: str) -> ModelSpec:
    _refuse_parts(raw)
    sizes = gemma_sizes(raw, num_layers=30, norm_plus_one=False)
    local = _local_layers(raw, sizes.num_layers)
    attentions = _attentions(raw, sizes, local)
    ffn = replace(gemma_ffn(raw, sizes), factor=vector("layer_scalar", "layer_scalar", 1))
    network: Block = _mixture(raw, sizes, ffn) if raw.flag("enable_moe_block", False) else ffn
    layers: list[tuple[Block, ...]] = [(each, _widened(raw, network, each)) for each in attentions]
    if size := raw.index("hidden_size_per_layer_input", 256):
        layers = [_with_input(sizes, blocks, layer, size) for layer, blocks in enumerate(layers)]
    spec = gemma_decoder(raw, architecture, sizes, layers, vocab_size=262_144, names=_NAMES)
    if not size:
        return spec
    vocab_size = raw.count("vocab_size_per_layer_input", 262_144)
    if vocab_size != spec.vocab_size:
        raise UnsupportedModelError(
            f"{raw.where}: vocab_size_per_layer_input: {vocab_size} is not supported beside a vocab_size of "
            f"{spec.vocab_size}"
        )
    tables = layer_tables(vocab_size, sizes.num_layers, size)
    return replace(spec, embedding=replace(spec.embedding, others=tables))


def _widened(raw: JsonConfig, network: Block, attention: Attention) -> Block:
    """The network of a layer, which may be twice as wide where the layer keeps no keys."""
    if not raw.flag("use_double_wide_mlp", False) or attention.kv_layer is None:
        return network
    if not isinstance(network, GatedFFN):
        raise UnsupportedModelError(f"{raw.where}: use_double_wide_mlp beside enable_moe_block is not supported")
    return replace(network, intermediate_size=2 * network.intermediate_size)


def _with_input(sizes: Dimensions, blocks: tuple[Block, ...], layer: int, size: int) -> tuple[Block, ...]:
    """The blocks of a layer with what it gets of its tokens behind them; the last block has the layer's factor."""
    *others, network = blocks
    if not isinstance(network, GatedFFN):
        raise UnsupportedModelError("hidden_size_per_layer_input beside enable_moe_block is not supported")
    own = LayerInput(
        hidden_size=sizes.hidden_size,
        size=size,
        layer=layer,
        activation=network.activation,
        post_norm=sizes.norm("post_per_layer_input_norm", "input_out_norm"),
        embedding_scale=sizes.hidden_size**0.5,
        factor=network.factor,
    )
    return (*others, replace(network, factor=None), own)


def _mixture(raw: JsonConfig, sizes: Dimensions, ffn: GatedFFN) -> DenseAndExperts:
    router_norm = replace(sizes.norm("router.scale", "router_norm"), name="router.scale")
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=raw.count("moe_intermediate_size"),
        activation=ffn.activation,
        routing=Routing(raw.count("num_experts"), raw.count("top_k_experts"), normalises=True),
        norm=sizes.norm("pre_feedforward_layernorm_2", "experts_norm"),
        is_stacked=not raw.traits.are_experts_apart,
        is_scaled=True,
        router_norm=router_norm,
    )
    return DenseAndExperts(
        ffn,
        experts,
        sizes.norm("post_feedforward_layernorm_1", "post_dense_norm"),
        sizes.norm("post_feedforward_layernorm_2", "post_experts_norm"),
    )


def _refuse_parts(raw: JsonConfig) -> None:
    """Raise UnsupportedModelError for what changes a result and no block does."""
    if raw.has("rope_scaling"):
        raise UnsupportedModelError(f"{raw.where}: rope_scaling: only rope_parameters are supported here")
    if raw.has("use_bidirectional_attention") and raw.text("use_bidirectional_attention") != "vision":
        kind = raw.text("use_bidirectional_attention")[:100]
        raise UnsupportedModelError(
            f"{raw.where}: use_bidirectional_attention: {kind!r} is not supported: text is attended to causally"
        )


def _local_layers(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Which layers have a window; the last one never has, whatever the file says."""
    kinds = layer_kinds(raw, num_layers)
    if kinds is None:
        kinds = ["sliding_attention" if (layer + 1) % _PATTERN else "full_attention" for layer in range(num_layers)]
    return [kind == "sliding_attention" for kind in (*kinds[:-1], "full_attention")]


@dataclass(frozen=True, slots=True)
class _Heads:
    """Heads of keys and values of a layer."""

    size: int
    num_kv: int


def _attentions(raw: JsonConfig, sizes: Dimensions, local: list[bool]) -> list[Attention]:
    window, bias = raw.count("sliding_window", 512), raw.flag("attention_bias", False)
    shares_keys = raw.flag("attention_k_eq_v", False)
    heads = _layer_heads(raw, sizes, local, shares_keys=shares_keys)

    def attention(own: _Heads, *, is_local: bool) -> Attention:
        rotary = _local_rotary(raw, own.size) if is_local else _global_rotary(raw, own.size)
        if sizes.num_heads % own.num_kv:
            raise CheckpointError(
                f"{raw.where}: num_attention_heads {sizes.num_heads} is not a multiple of the {own.num_kv} heads of"
                " keys and values of a layer"
            )
        own_sizes = replace(sizes, head_dim=own.size, num_kv_heads=own.num_kv)
        found = own_sizes.attention(
            rotary,
            window=window if is_local else 0,
            softmax_scale=1.0,
            post_norm="post_attention_layernorm",
            qk_norm=True,
            qkv_bias=bias,
            output_bias=bias,
        )
        return replace(found, v_norm=True, v_from_k=shares_keys and not is_local)

    found = [attention(own, is_local=is_local) for own, is_local in zip(heads, local, strict=True)]
    return _sharing(raw, found, local)


def _sharing(raw: JsonConfig, attentions: list[Attention], local: list[bool]) -> list[Attention]:
    """Have the last layers read the keys and values of the last one of their kind before them."""
    num_own = len(attentions) - raw.index("num_kv_shared_layers", 0)
    found = attentions[: max(num_own, 0)]
    for layer in range(len(found), len(attentions)):
        source = max((own for own in range(num_own) if local[own] == local[layer]), default=None)
        if source is None:
            raise CheckpointError(
                f"{raw.where}: num_kv_shared_layers: no layer before {num_own} is of the kind of layer {layer}"
            )
        if attentions[source].keys != attentions[layer].keys:
            raise UnsupportedModelError(
                f"{raw.where}: layer {layer} has other heads than {source}, whose keys it shares"
            )
        found.append(replace(attentions[layer], kv_layer=source))
    return found


def _layer_heads(raw: JsonConfig, sizes: Dimensions, local: list[bool], *, shares_keys: bool) -> list[_Heads]:
    """The heads of each layer: global layers have their own, by keys of the whole or of each layer."""
    own = _Heads(sizes.head_dim, sizes.num_kv_heads)
    if raw.has(_PER_LAYER):
        section = raw.section(_PER_LAYER)
        return [_changed(section, str(layer), own) for layer in range(sizes.num_layers)]
    num_kv = sizes.num_kv_heads
    if shares_keys and raw.has("num_global_key_value_heads"):
        num_kv = raw.count("num_global_key_value_heads")
    whole = _Heads(raw.count("global_head_dim", 512), num_kv)
    return [own if is_local else whole for is_local in local]


def _changed(section: JsonConfig, layer: str, own: _Heads) -> _Heads:
    if not section.has(layer):
        return own
    changes = section.section(layer)
    if unknown := sorted(set(changes.raw) - {"head_dim", "num_key_value_heads"}):
        raise UnsupportedModelError(f"{changes.where}: {', '.join(unknown)[:100]} of a layer alone is not supported")
    return _Heads(changes.count("head_dim", own.size), changes.count("num_key_value_heads", own.num_kv))


def _local_rotary(raw: JsonConfig, head_dim: int) -> RotaryConfig:
    section = _rope_section(raw, "sliding_attention")
    return RotaryConfig(1e4) if section is None else read_section_rotary(section, head_dim, 1e4, raw)


def _global_rotary(raw: JsonConfig, head_dim: int) -> RotaryConfig:
    """A part of the pairs rotates, the first ones, as fast as they would if all did."""
    section = _rope_section(raw, "full_attention")
    if section is None:
        return RotaryConfig(1e6, num_pairs=head_dim // 8)
    return read_layer_rotary(section, head_dim, 1e6, raw)


def _rope_section(raw: JsonConfig, kind: str) -> JsonConfig | None:
    return raw.section("rope_parameters").section(kind) if raw.has("rope_parameters") else None
