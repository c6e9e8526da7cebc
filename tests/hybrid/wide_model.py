"""Small random models that no golden checkpoint is: with a head_dim of an NPU's kernels, or with a single layer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.engine.checkpoint_files import write_tokenizer
from tests.golden.cases import CASES, Case
from tests.golden.checkpoints import encode, safetensors_bytes, weights

if TYPE_CHECKING:
    from pathlib import Path

_LLAMA = CASES["llama"]
_CONFIG = {**_LLAMA.config, "head_dim": 128, "num_attention_heads": 3, "num_key_value_heads": 1}
WIDE = Case("wide", {**_CONFIG, "hidden_size": 96}, "wide", gains=_LLAMA.gains)
_GEMMA3 = CASES["gemma3"]
_CONFIG_GEMMA3 = {**_GEMMA3.config, "head_dim": 64, "tie_word_embeddings": False}  # tied, it repeats its last token
WIDE_GEMMA3 = Case("wide_gemma3", _CONFIG_GEMMA3, "wide_gemma3", norm_gains=_GEMMA3.norm_gains)
_QWEN2 = CASES["qwen2"]
TINY = Case("tiny", {**_QWEN2.config, "num_hidden_layers": 1}, "qwen2", gains=_QWEN2.gains)  # opened in no time


def wide_case(head_dim: int) -> Case:
    """A model with a single layer and a head_dim of its own."""
    return Case("wide", {**WIDE.config, "head_dim": head_dim, "num_hidden_layers": 1}, "wide", gains=_LLAMA.gains)


WIDE_CASES = {case.name: case for case in (WIDE, WIDE_GEMMA3)}


def write_wide_model(directory: Path, case: Case = WIDE) -> Path:
    """Write the model and a tokenizer; return the directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**case.config, "torch_dtype": "bfloat16"}), encoding="utf-8")
    tensors = [(name, *encode(value, "bfloat16")) for name, value in weights(case)]
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    write_tokenizer(directory, 512)
    return directory
