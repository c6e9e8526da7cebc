"""Golden models with room for prompts that are longer than those whose logits are kept here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .cases import CASES, Layout
from .checkpoints import encode, safetensors_bytes, weights, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = 2048
LONG_CASES = tuple(name for name, case in CASES.items() if case.layout is Layout.TEXT and case.reference == name)


def write_long(name: str, directory: Path, dtype: str) -> Path:
    """Write a case for 2,048 tokens at least, its matrices all of a type; return the directory."""
    write_checkpoint(name, directory, dtype)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = max(CONTEXT, config["max_position_embeddings"])
    if config.pop("quantization_config", None) is not None:
        tensors = [(key, *encode(value, dtype)) for key, value in weights(CASES[name])]
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
