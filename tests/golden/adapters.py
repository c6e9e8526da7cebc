"""Deterministic LoRA adapters for golden checkpoints, and the reference logits of the blended models.

Factors are drawn as the checkpoints' weights are, on bfloat16's grid, so that a file of any type holds the same ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .cases import CASES
from .checkpoints import Golden, draw, encode, read_golden, safetensors_bytes, weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .checkpoints import Floats

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN = ("gate_proj", "up_proj", "down_proj")
_CHANGE = 0.3  # deviation of a change over that of a weight with a gain of 1


@dataclass(frozen=True, slots=True)
class AdapterCase:
    """One adapter of a blend. `targets` are the last parts of modules' names, `ranks` other ranks for some of them."""

    name: str
    targets: tuple[str, ...]
    rank: int
    alpha: float
    weight: float
    dtype: str
    rslora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    prefix: str = "base_model.model."
    infix: str = ""

    def rank_of(self, module: str) -> int:
        """The rank of a module, by the last part of its name."""
        return self.ranks.get(module, self.rank)

    def scale_of(self, module: str) -> float:
        """What a module's product is multiplied by, with the adapter's weight."""
        rank, alpha = self.rank_of(module), self.alphas.get(module, self.alpha)
        return self.weight * alpha / (rank**0.5 if self.rslora else rank)


BLENDS: Mapping[str, tuple[AdapterCase, ...]] = {
    "llama": (
        AdapterCase("first", (*ATTENTION, "embed_tokens", "lm_head"), 8, 16.0, 0.75, "float32", infix=".default"),
        AdapterCase("second", ("q_proj", *FFN), 16, 4.0, -1.25, "bfloat16", rslora=True),
    ),
    "gemma3": (
        AdapterCase(
            "only",
            ("q_proj", "v_proj", "down_proj"),
            4,
            8.0,
            1.0,
            "float16",
            ranks={"v_proj": 12},
            alphas={"down_proj": 3.0},
        ),
    ),
}


def golden_blend(name: str) -> Golden:
    """Load the reference of a case with its adapters."""
    return read_golden(f"{name}_lora")


def factors(name: str, adapter: AdapterCase) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield each weight that an adapter changes, with A and B; for embeddings A is (rank, vocabulary)."""
    case = CASES[name]
    for weight, value in weights(case):
        name_on_disk = weight.removesuffix(".weight")
        module = name_on_disk.rsplit(".", 1)[-1]
        if not f".{name_on_disk}".endswith(tuple(f".{target}" for target in adapter.targets)):
            continue
        rows, columns = value.shape
        if module == "embed_tokens":
            rows, columns = columns, rows
        rank, key = adapter.rank_of(module), f"{name}/{adapter.name}/{weight}"
        gain = 1.0 if module == "embed_tokens" else columns**-0.5
        deviation = _CHANGE / (rank**0.5 * abs(adapter.scale_of(module)))
        yield weight, draw(f"{key}/A", (rank, columns), gain), draw(f"{key}/B", (rows, rank), deviation)


def write_adapter(name: str, adapter: AdapterCase, directory: Path) -> Path:
    """Write an adapter as PEFT does; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = []
    for weight, a, b in factors(name, adapter):
        module = adapter.prefix + weight.removesuffix(".weight")
        for side, value in (("A", a), ("B", b)):
            if module.endswith("embed_tokens"):
                key = f"{module}.lora_embedding_{side}{adapter.infix}"
            else:
                key = f"{module}.lora_{side}{adapter.infix}.weight"
            tensors.append((key, *encode(value, adapter.dtype)))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "target_modules": list(adapter.targets),
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "use_rslora": adapter.rslora,
        "rank_pattern": dict(adapter.ranks),
        "alpha_pattern": dict(adapter.alphas),
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (directory / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors))
    return directory
