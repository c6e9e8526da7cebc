"""The supported architectures by the names that config.json has for them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.file_traits import NO_TRAITS, FileTraits
from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.ops.kv_cache import MAX_HEAD_DIM, MAX_LATENT_KEY_DIM, MIN_HEAD_DIM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.models.spec import ModelSpec

_FAMILIES = "unicorn_async.models.families"
# The file and the function that reads each. A start imports its own alone, since weights are read after that.
ARCHITECTURES: Mapping[str, str] = {
    "Cohere2ForCausalLM": "cohere2.cohere2",
    "DeepseekV2ForCausalLM": "deepseek.deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek.deepseek_v3",
    "Ernie4_5ForCausalLM": "ernie4_5.ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5.ernie4_5_moe",
    "Exaone4ForCausalLM": "exaone4.exaone4",
    "Gemma2ForCausalLM": "gemma2.gemma2",
    "Gemma3ForCausalLM": "gemma.gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma.gemma3_multimodal",
    "Gemma4ForCausalLM": "gemma4.gemma4_text",
    "Gemma4ForConditionalGeneration": "gemma4.gemma4_multimodal",
    "Glm4ForCausalLM": "glm.glm4",
    "Glm4MoeForCausalLM": "glm_moe.glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm_moe.glm4_moe_lite",
    "GlmForCausalLM": "glm.glm",
    "GptOssForCausalLM": "gpt_oss.gpt_oss",
    "GraniteForCausalLM": "granite.granite",
    "GraniteMoeHybridForCausalLM": "granite_hybrid.granite_hybrid",
    "Lfm2ForCausalLM": "lfm2.lfm2",
    "Lfm2MoeForCausalLM": "lfm2.lfm2_moe",
    "Lfm3ForCausalLM": "lfm3.lfm3",
    "LlamaForCausalLM": "llama.llama",
    "Ministral3ForCausalLM": "ministral.ministral3",
    "Mistral3ForConditionalGeneration": "ministral.mistral3",
    "Mistral4ForCausalLM": "ministral.mistral4",
    "MistralForCausalLM": "llama.mistral",
    "MixtralForCausalLM": "mixtral.mixtral",
    "Olmo2ForCausalLM": "olmo.olmo2",
    "Olmo3ForCausalLM": "olmo.olmo3",
    "OlmoeForCausalLM": "olmoe.olmoe",
    "Phi3ForCausalLM": "phi3.phi3",
    "Qwen2ForCausalLM": "qwen.qwen2",
    "Qwen2MoeForCausalLM": "qwen_moe.qwen2_moe",
    "Qwen2VLForConditionalGeneration": "qwen_vl.qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen_vl.qwen2_5_vl",
    "Qwen3ForCausalLM": "qwen.qwen3",
    "Qwen3MoeForCausalLM": "qwen_moe.qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next.qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5.qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5.qwen3_5_multimodal",
    "Qwen3_5MoeForCausalLM": "qwen3_5.qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5.qwen3_5_moe_multimodal",
    "Qwen3VLForConditionalGeneration": "qwen_vl.qwen3_vl",
    "RWKV7ForCausalLM": "rwkv7.rwkv7",
    "SeedOssForCausalLM": "seed_oss.seed_oss",
    "SmolLM3ForCausalLM": "smollm3.smollm3",
}


def model_spec(raw: Mapping[str, object], where: str = "config.json", traits: FileTraits = NO_TRAITS) -> ModelSpec:
    """Read a parsed config.json beside files of these traits; errors say that it is `where`.

    Raises:
        UnsupportedModelError: the architecture, or an option of it, is not supported.
        CheckpointError: a key is missing, of a wrong type, or contradicts another.
    """
    config = JsonConfig(raw, where, traits)
    names = config.texts("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            parsed = _reader(name)(config)
            _check(parsed, where)
            return parsed
    raise UnsupportedModelError(
        f"{where}: architectures {str(names)[:100]} is not supported; supported are {', '.join(ARCHITECTURES)}"
    )


def _reader(architecture: str) -> Callable[[JsonConfig], ModelSpec]:
    file, _, function = ARCHITECTURES[architecture].partition(".")
    reader: Callable[[JsonConfig], ModelSpec] = getattr(import_module(f"{_FAMILIES}.{file}"), function)
    return reader


def _check(spec: ModelSpec, where: str) -> None:
    sizes = [size for block in spec.unique_blocks for size in block.sizes.items()]
    for name, value in (("hidden_size", spec.hidden_size), *sizes):
        if value % 8:
            raise UnsupportedModelError(f"{where}: {name}: expected a multiple of 8, got {value}")
    for state in spec.paged_states:
        most = MAX_LATENT_KEY_DIM if state.latent_dim else MAX_HEAD_DIM
        if not MIN_HEAD_DIM <= state.head_dim <= most:
            name = "kv_lora_rank + qk_rope_head_dim" if state.latent_dim else "head_dim"
            raise UnsupportedModelError(f"{where}: {name}: expected {MIN_HEAD_DIM} to {most}, got {state.head_dim}")
    for number, layer in enumerate(spec.layers):
        if not layer.attends:
            continue
        attention = layer.attention
        if attention.rotary.base <= 1.0:
            base = attention.rotary.base
            raise CheckpointError(f"{where}: rope_theta of layer {number}: expected more than 1, got {base}")
        if attention.heads != spec.attention.heads:
            raise UnsupportedModelError(
                f"{where}: layer {number} attends with {attention.heads}, the first one with {spec.attention.heads}; "
                "all have to be alike"
            )
