"""GGUF files in a folder: which models they are, and the tag by which one of them is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.header import MAGIC
from unicorn_async.checkpoint.gguf.split import model_stem, part_paths
from unicorn_async.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SUFFIX = ".gguf"
# What names of files call their type by, such as Q4_K_M, UD-Q4_K_XL, IQ3_XXS, BF16 or MXFP4_MOE.
_TAG = re.compile(r"(?:.*?[-._])?((?:UD-)?(?:I?Q\d|TQ\d|BF16|F16|F32|FP16|MXFP4|NVFP4)\w*)", re.IGNORECASE)
_DYNAMIC = "ud-"
# Files beside a model: its projector for images, what its weights matter, and its layers that draft alone.
_BESIDE = re.compile(r"(.*[-._])?mmproj([-._].*)?|(mmproj|imatrix|mtp-).*", re.IGNORECASE)


def is_model_name(name: str) -> bool:
    """Whether a file of this name is (a part of) a model, and not of what lies beside one, such as a projector."""
    return name.endswith(SUFFIX) and _BESIDE.fullmatch(name) is None


def is_gguf(path: Path) -> bool:
    """Whether a regular file is a GGUF file by its name, or by its first bytes: Ollama's have names without a suffix.

    Raises:
        ConfigError: it can't be read.
    """
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}") from exc


def whole_models(paths: Iterable[Path]) -> list[Path]:
    """Return the first files, sorted, of the models that files are parts of; models without all parts are left out."""
    found: set[Path] = set()
    for path in paths:
        try:
            found.add(part_paths(path)[0])
        except CheckpointError:
            continue
    return sorted(found)


def tag_of(path: Path) -> str:
    """Return what tells a model's file from others of the same model: its type, or its whole name."""
    match = _TAG.fullmatch(model_stem(path))
    return match[1] if match else model_stem(path)


def tagged(paths: Sequence[Path], tag: str) -> list[Path]:
    """Return the files that a tag may mean, in any letter case: a type, a file's name, a part of it, or its folder's.

    One of a dynamic mixture ("UD-") is meant where no other is, or where the tag says so.
    """
    wanted = tag.lower().removesuffix(SUFFIX)
    exact = [path for path in paths if wanted in (tag_of(path).lower(), model_stem(path).lower())]
    if exact:
        return exact
    part = re.compile(rf"(?:.*[-.])?{re.escape(wanted)}(?:[-.].*)?")
    found = [path for path in paths if any(part.fullmatch(n.lower()) for n in (model_stem(path), path.parent.name))]
    plain = [path for path in found if _DYNAMIC not in model_stem(path).lower()]
    return plain if plain and _DYNAMIC not in wanted else found
