"""What an adapter_config.json says: ranks, scales, and what of PEFT's methods is not supported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.lora.module_pattern import ModulePattern

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RANK = 1 << 16
_MAX_PATTERNS = 1 << 14
_MAX_CHOICE_PATTERNS = 16
# Methods that compute something else than W + scale · B · A, by the key that asks for them.
_OTHER_METHODS = {
    "use_dora": "DoRA",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "biases of the adapter",
    "modules_to_save": "whole modules beside the adapter",
    "layer_replication": "replicated layers",
    "target_parameters": "adapters of parameters",
    "trainable_token_indices": "trained token embeddings",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
    "megatron_config": "Megatron's parallel layers",
}
# Ways to initialise an adapter that leave the base's weights alone; others subtract something from them first.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Ranks and alphas of an adapter's modules; `fan_in_fan_out` does not matter to the layers of decoders here."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: tuple[tuple[ModulePattern, int], ...] = ()
    alpha_pattern: tuple[tuple[ModulePattern, float], ...] = ()

    @classmethod
    def parse(cls, fields: Mapping[str, object], source: str) -> LoraConfig:
        """Check a configuration's fields; `source` names its file in errors.

        Raises:
            CheckpointError: a field is missing, or its value can't be.
            UnsupportedModelError: the adapter is of another kind than LoRA, or needs more than its two factors.
        """
        _refuse_others(fields, source)
        return cls(
            rank=_rank(fields.get("r"), f"{source}: r"),
            alpha=_number(fields.get("lora_alpha"), f"{source}: lora_alpha"),
            use_rslora=_flag(fields, "use_rslora", source),
            rank_pattern=tuple(
                (pattern, _rank(value, where)) for pattern, value, where in _patterns(fields, "rank_pattern", source)
            ),
            alpha_pattern=tuple(
                (pattern, _number(value, where)) for pattern, value, where in _patterns(fields, "alpha_pattern", source)
            ),
        )

    def rank_of(self, module: str) -> int:
        """Return a module's rank, by its name in the trained model."""
        return next((rank for pattern, rank in self.rank_pattern if pattern.matches(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return what a module's product is multiplied by: alpha / r, or alpha / √r with rsLoRA."""
        alpha = next((alpha for pattern, alpha in self.alpha_pattern if pattern.matches(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def _refuse_others(fields: Mapping[str, object], source: str) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(f"{source}: peft_type is {_shown(kind)}; only 'LORA' is supported")
    for key, method in _OTHER_METHODS.items():
        if fields.get(key):
            raise UnsupportedModelError(f"{source}: {key} is {_shown(fields[key])}: {method}: not supported")
    bias = fields.get("bias", "none")
    if bias not in ("none", "all", "lora_only"):
        raise CheckpointError(f"{source}: bias: expected 'none', 'all' or 'lora_only', got {_shown(bias)}")
    start = fields.get("init_lora_weights")
    if not any(start is plain or (isinstance(start, str) and start == plain) for plain in _PLAIN_STARTS):
        raise UnsupportedModelError(
            f"{source}: init_lora_weights is {_shown(start)}, which changes the base's weights too; "
            "convert it to a plain adapter when saving it"
        )
    _flag(fields, "fan_in_fan_out", source)


def _flag(fields: Mapping[str, object], key: str, source: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool | None):
        raise CheckpointError(f"{source}: {key}: expected true or false, got {_shown(value)}")
    return bool(value)


def _rank(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise CheckpointError(f"{where}: expected a whole number, 1 to {MAX_RANK}, got {_shown(value)}")
    return value


def _number(value: object, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e9:
        raise CheckpointError(f"{where}: expected a number, got {_shown(value)}")
    return float(value)


def _patterns(fields: Mapping[str, object], key: str, source: str) -> list[tuple[ModulePattern, object, str]]:
    values = fields.get(key) or {}
    if not isinstance(values, dict) or len(values) > _MAX_PATTERNS:
        raise CheckpointError(f"{source}: {key}: expected an object of at most {_MAX_PATTERNS} keys")
    made = [
        (ModulePattern(name, f"{source}: {key}"), value, f"{source}: {key}: {name}") for name, value in values.items()
    ]
    choices = sum(pattern.has_choices for pattern, _, _ in made)
    if choices > _MAX_CHOICE_PATTERNS:
        raise UnsupportedModelError(
            f"{source}: {key}: {choices} patterns with repetitions or groups, {_MAX_CHOICE_PATTERNS} are supported"
        )
    return made


def _shown(value: object) -> str:
    """A value as it is shown in an error; a hostile one may be very long."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "…"
