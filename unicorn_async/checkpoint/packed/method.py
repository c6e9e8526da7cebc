"""Which of the methods that weights can be packed by a configuration announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.packed import fp8
from unicorn_async.checkpoint.packed.bitsandbytes import check_settings
from unicorn_async.checkpoint.packed.bitsandbytes import join as join_normal_floats
from unicorn_async.checkpoint.packed.columns import awq, gptq
from unicorn_async.checkpoint.packed.columns import join as join_columns
from unicorn_async.checkpoint.packed.compressed import compressed
from unicorn_async.checkpoint.packed.compressed import join as join_compressed
from unicorn_async.checkpoint.packed.parts import Parts
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from unicorn_async.checkpoint.partial_file import PartialFiles
    from unicorn_async.checkpoint.source_tensor import SourceTensor

    Join: TypeAlias = Callable[[Parts], None]


def packed_method(config: Mapping[str, object], where: str) -> Join | None:
    """Return what puts the tensors of packed matrices together, None where a configuration announces none of them.

    Raises:
        CheckpointError, UnsupportedModelError: it is of a kind that can't be read; the message names it.
    """
    settings = announced(config)
    method = settings.get("quant_method")
    if method == "fp8":
        block = fp8.block_size(settings, where)
        return lambda parts: fp8.join(parts, block)
    if method in ("awq", "gptq"):
        columns = awq(settings, where) if method == "awq" else gptq(settings, where)
        return lambda parts: join_columns(parts, columns)
    if method == "bitsandbytes" and settings.get("load_in_4bit"):
        check_settings(settings, where)
        return join_normal_floats
    if method == "compressed-tensors" and (kind := compressed(settings, where)) is not None:
        return lambda parts: join_compressed(parts, kind)
    return None


def announced(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return what a configuration, or its text model's, says of quantisation; empty where it says nothing."""
    text = config.get("text_config")
    for section in (config, text if isinstance(text, dict) else {}):
        found = section.get("quantization_config")
        if isinstance(found, dict):
            return found
    return {}


def joined(
    join: Join,
    tensors: Mapping[str, SourceTensor],
    directory: Path,
    files: Sequence[Path] = (),
    partial: PartialFiles = NO_PARTIAL_FILES,
) -> tuple[dict[str, SourceTensor], list[str]]:
    """Return the tensors with packed matrices in the place of what they are made of, and the names of what is unread.

    Raises:
        CheckpointError, UnsupportedModelError: something is missing, does not fit, or can't be read.
    """
    parts = Parts(tensors, directory, files, partial)
    unread = parts.drop(*fp8.UNREAD)
    join(parts)
    if not any(source.packing for source in parts.left.values()):
        raise CheckpointError(f"{directory}: no tensor is quantised, which the configuration says")
    return parts.left, unread
