"""The supported architectures by the names that config.json has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.families.cohere2 import cohere2
from unicorn_async.models.families.exaone4 import exaone4
from unicorn_async.models.families.gemma import gemma3_multimodal, gemma3_text
from unicorn_async.models.families.gemma2 import gemma2
from unicorn_async.models.families.glm import glm, glm4
from unicorn_async.models.families.granite import granite
from unicorn_async.models.families.llama import llama, mistral
from unicorn_async.models.families.ministral import ministral3, mistral3
from unicorn_async.models.families.olmo import olmo2, olmo3
from unicorn_async.models.families.phi3 import phi3
from unicorn_async.models.families.qwen import qwen2, qwen3
from unicorn_async.models.families.seed_oss import seed_oss
from unicorn_async.models.families.smollm3 import smollm3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.models.spec import ModelSpec

ARCHITECTURES: Mapping[str, Callable[[JsonConfig], ModelSpec]] = {
    "Cohere2ForCausalLM": cohere2,
    "Exaone4ForCausalLM": exaone4,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3_text,
    "Gemma3ForConditionalGeneration": gemma3_multimodal,
    "Glm4ForCausalLM": glm4,
    "GlmForCausalLM": glm,
    "GraniteForCausalLM": granite,
    "LlamaForCausalLM": llama,
    "Ministral3ForCausalLM": ministral3,
    "Mistral3ForConditionalGeneration": mistral3,
    "MistralForCausalLM": mistral,
    "Olmo2ForCausalLM": olmo2,
    "Olmo3ForCausalLM": olmo3,
    "Phi3ForCausalLM": phi3,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "SeedOssForCausalLM": seed_oss,
    "SmolLM3ForCausalLM": smollm3,
}


def model_spec(raw: Mapping[str, object], where: str = "config.json") -> ModelSpec:
    """Read a parsed config.json; errors say that it is `where`.

    Raises:
        UnsupportedModelError: the architecture, or an option of it, is not supported.
        CheckpointError: a key is missing, of a wrong type, or contradicts another.
    """
    config = JsonConfig(raw, where)
    names = config.texts("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            parsed = ARCHITECTURES[name](config)
            _check(parsed, where)
            return parsed
    raise UnsupportedModelError(
        f"{where}: architectures {names} is not supported; supported are {', '.join(ARCHITECTURES)}"
    )


def _check(spec: ModelSpec, where: str) -> None:
    ffns = {block for layer in spec.layers for block in layer.blocks if isinstance(block, GatedFFN)}
    widths = (("intermediate_size", ffn.intermediate_size) for ffn in ffns)
    for name, value in (("hidden_size", spec.hidden_size), ("head_dim", spec.head_dim), *widths):
        if value % 8:
            raise UnsupportedModelError(f"{where}: {name}: expected a multiple of 8, got {value}")
    if not 32 <= spec.head_dim <= 256:
        raise UnsupportedModelError(f"{where}: head_dim: expected 32 to 256, got {spec.head_dim}")
    for number, layer in enumerate(spec.layers):
        attention = layer.attention
        if attention.rotary.base <= 1.0:
            base = attention.rotary.base
            raise CheckpointError(f"{where}: rope_theta of layer {number}: expected more than 1, got {base}")
        if attention.heads != spec.attention.heads:
            raise UnsupportedModelError(
                f"{where}: layer {number} attends with {attention.heads}, the first one with {spec.attention.heads}; "
                "all have to be alike"
            )
