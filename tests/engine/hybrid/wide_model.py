"""A small random model with a head_dim of 128, which no golden checkpoint has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.golden.cases import CASES, Case
from tests.golden.checkpoints import encode, safetensors_bytes, weights

from ..checkpoint_files import write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_LLAMA = CASES["llama"]
_CONFIG = {**_LLAMA.config, "head_dim": 128, "num_attention_heads": 3, "num_key_value_heads": 1}
WIDE = Case("wide", {**_CONFIG, "hidden_size": 96}, "wide", gains=_LLAMA.gains)


def write_wide_model(directory: Path) -> Path:
    """Write the model and a tokenizer; return the directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**WIDE.config, "torch_dtype": "bfloat16"}), encoding="utf-8")
    tensors = [(name, *encode(value, "bfloat16")) for name, value in weights(WIDE)]
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    write_tokenizer(directory, 512)
    return directory
