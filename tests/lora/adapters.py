"""Small LoRA adapters in PEFT's layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.checkpoint import builders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = tuple[str, tuple[int, ...], bytes]

PREFIX = "base_model.model."
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "modules_to_save": None,
    "use_dora": False,
    "use_rslora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "task_type": "CAUSAL_LM",
}


def stored(values: NDArray[np.float32], dtype: str = "F32") -> Bytes:
    """Values as a tensor of a file; BF16 is cut off, so they should be on its grid."""
    if dtype == "BF16":
        return dtype, values.shape, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return dtype, values.shape, values.astype(np.float32 if dtype == "F32" else np.float16).tobytes()


def factors(
    module: str, rows: int, columns: int, *, rank: int = 4, dtype: str = "F32", infix: str = ""
) -> dict[str, Bytes]:
    """Random factors for a linear layer of `rows` outputs."""
    return {
        f"{PREFIX}{module}.lora_A{infix}.weight": builders.tensor(dtype, rank, columns, seed=len(module)),
        f"{PREFIX}{module}.lora_B{infix}.weight": builders.tensor(dtype, rows, rank, seed=len(module) + 1),
    }


def write_adapter(directory: Path, tensors: Mapping[str, Bytes], **config: Any) -> Path:
    """Write an adapter's directory; `config` overrides fields."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    (directory / "adapter_model.safetensors").write_bytes(builders.file_bytes(tensors))
    return directory
