"""Checkpoints in Hugging Face's layout that are quantised by a method that can't be read, to refuse them by its name.

Source: the configurations that AutoGPTQ, AutoAWQ, bitsandbytes, compressed-tensors, NVIDIA's ModelOpt and MLX write,
and the names that they give their tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.packed.method import packed_method
from unicorn_async.checkpoint.strict_json import read_object
from unicorn_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from unicorn_async.checkpoint.source_tensor import SourceTensor

_MODELOPT_FILE = "hf_quant_config.json"
_MAX_CHARS = 60  # of what a file says of its method
# What only quantised checkpoints have, and whose layout it is; the first that a checkpoint has tells most.
_SUFFIXES = (
    (".weight_global_scale", "NVFP4 by compressed-tensors"),
    (".weight_scale_2", "NVFP4 by ModelOpt"),
    (".qweight", "GPTQ or AWQ"),
    (".qzeros", "GPTQ or AWQ"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_inv", "FP8 with blocks of scales"),
    (".weight_scale", "FP8 or compressed-tensors"),
    (".SCB", "bitsandbytes in 8 bits"),
    (".quant_state", "bitsandbytes in 4 bits"),
    (".weight.absmax", "bitsandbytes in 4 bits"),
    ("_proj_blocks", "MXFP4"),
)
_MLX_DTYPE, _MLX_SCALES = "U32", ".scales"


def refuse_announced(config: Mapping[str, object], directory: Path) -> None:
    """Check that neither a configuration nor a file beside it announces quantised weights that can't be read.

    Raises:
        UnsupportedModelError: it does; the message names the method.
        CheckpointError: what it says of one that can be read makes no sense.
    """
    text_config = config.get("text_config")
    if has_mxfp4(config) or packed_method(config, str(directory)) is not None:
        return
    for section in [config, text_config] if isinstance(text_config, dict) else [config]:
        if (method := _announced(section)) is not None:
            raise _refusal(directory, method)
    if (directory / _MODELOPT_FILE).is_file():
        raise _refusal(directory, _modelopt(read_object(directory / _MODELOPT_FILE).get("quantization")))


def has_mxfp4(config: Mapping[str, object]) -> bool:
    """Whether a configuration announces MXFP4 as gpt-oss is published in, which is read as it is."""
    found = config.get("quantization_config")
    return isinstance(found, dict) and found.get("quant_method") == "mxfp4"


def refuse_quantised(tensors: Iterable[SourceTensor], directory: Path) -> None:
    """Check that no tensor is of a layout that only quantised checkpoints have.

    Raises:
        UnsupportedModelError: one is; the message names it, and the layout.
    """
    found = {tensor.name: tensor for tensor in tensors if tensor.packing is None}
    for suffix, layout in _SUFFIXES:
        if name := next((name for name in found if name.endswith(suffix)), None):
            raise _refusal(directory, f"{layout} (tensor {name!r})")
    for name, tensor in found.items():
        if tensor.dtype == _MLX_DTYPE and f"{name.removesuffix('.weight')}{_MLX_SCALES}" in found:
            raise _refusal(directory, f"MLX (tensor {name!r})")


def _refusal(directory: Path, method: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{directory}: quantised with {method}, which is not supported; "
        "use the F32, F16 or BF16 checkpoint, or a GGUF file"
    )


def _announced(section: Mapping[str, object]) -> str | None:
    """The method that a section of config.json announces, None where it is silent."""
    mlx, found = section.get("quantization"), section.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    if mlx is not None and method is None:
        return _mlx(mlx)
    if found is None:
        return None
    if not isinstance(found, dict):
        return "an unknown method"
    if method is None:
        bits = [key for key in ("load_in_4bit", "load_in_8bit") if found.get(key)]
        return _told("bitsandbytes", *bits) if bits else "an unknown method"
    if str(method).startswith("modelopt"):
        return _modelopt(found)
    return _told(str(method), found.get("format"), _bits(found.get("bits")), found.get("fmt"))


def _mlx(found: object) -> str:
    """MLX has its bits at the top, and each layer that differs beside them."""
    settings = found if isinstance(found, dict) else {}
    mode = settings.get("mode")
    groups = settings.get("group_size")
    return _told(
        "MLX",
        None if mode == "affine" else mode,
        _bits(settings.get("bits")),
        None if groups is None else f"groups of {groups}",
    )


def _modelopt(found: object) -> str:
    return _told("ModelOpt", found.get("quant_algo") if isinstance(found, dict) else None)


def _bits(value: object) -> str | None:
    return None if value is None else f"{value} bits"


def _told(method: str, *details: object) -> str:
    said = ", ".join(str(detail)[:_MAX_CHARS] for detail in details if detail)
    return f"{method[:_MAX_CHARS]} ({said})" if said else method[:_MAX_CHARS]
