"""The supported architectures by the names that config.json has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.families.gemma3 import gemma3_multimodal, gemma3_text
from unicorn_async.models.families.llama import llama, mistral
from unicorn_async.models.families.qwen import qwen2, qwen3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.config import ModelConfig

ARCHITECTURES: Mapping[str, Callable[[JsonConfig], ModelConfig]] = {
    "Gemma3ForCausalLM": gemma3_text,
    "Gemma3ForConditionalGeneration": gemma3_multimodal,
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}


def model_config(raw: Mapping[str, object], where: str = "config.json") -> ModelConfig:
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


def _check(config: ModelConfig, where: str) -> None:
    multiples_of_8 = {
        "hidden_size": config.hidden_size,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
    }
    for name, value in multiples_of_8.items():
        if value % 8:
            raise UnsupportedModelError(f"{where}: {name}: expected a multiple of 8, got {value}")
    if not 32 <= config.head_dim <= 256:
        raise UnsupportedModelError(f"{where}: head_dim: expected 32 to 256, got {config.head_dim}")
    for layer, rotary in enumerate(config.layer_rotary):
        if rotary.base <= 1.0:
            raise CheckpointError(f"{where}: rope_theta of layer {layer}: expected more than 1, got {rotary.base}")
