"""A GGUF model in several files, `…-00001-of-00003.gguf` and so on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.fields import shown
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.gguf.header import GgufHeader
    from unicorn_async.checkpoint.partial_file import PartialFiles

_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def model_stem(path: Path) -> str:
    """Return a file's name without its extension, and without the number of a part."""
    match = _PART_NAME.fullmatch(path.name)
    return match[1] if match else path.stem


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all files of the model that a file of this name is a part of, in order; it may have folders.

    Raises:
        CheckpointError: the name contradicts itself.
    """
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return (name,)
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count:
        raise CheckpointError(f"{name}: part {number} of {count}")
    return tuple(f"{stem}-{index:05}-of-{count:05}.gguf" for index in range(1, count + 1))


def part_paths(path: Path, partial: PartialFiles = NO_PARTIAL_FILES) -> tuple[Path, ...]:
    """Return all files of the model that `path` is a part of, in order: `path` alone where it is not split.

    Raises:
        CheckpointError: a part is missing.
    """
    names = part_names(path.name)
    if names == (path.name,):
        return (path,)
    present = {entry.name for entry in path.parent.iterdir()} if path.parent.is_dir() else set()
    present |= {found.name for found in partial if found.parent == path.parent}
    missing = [name for name in names if name not in present]
    if missing:
        raise CheckpointError(f"{path}: {len(missing)} of {len(names)} parts are missing, first {missing[0]}")
    return tuple(path.parent / name for name in names)


def check_parts(paths: Sequence[Path], headers: Sequence[GgufHeader]) -> None:
    """Check that the headers of `part_paths` are what the files' names promise.

    Raises:
        CheckpointError: a part says that it is another one, or tensors are missing.
    """
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        count = _integer(path, header.metadata, _COUNT)
        number = _integer(path, header.metadata, _NUMBER)
        if (count or 1) != len(paths) or (number or 0) != index:
            raise CheckpointError(
                f"{path}: {_NUMBER} {number} of {_COUNT} {count} in its metadata, "
                f"but its name makes it part {index} (from 0) of {len(paths)}"
            )
    found = sum(len(header.tensors) for header in headers)
    wanted = _integer(paths[0], headers[0].metadata, _TENSORS)
    if wanted is not None and wanted != found:
        raise CheckpointError(f"{paths[0]}: {_TENSORS} is {wanted}, the {len(paths)} parts have {found} tensors")


def _integer(path: Path, metadata: Mapping[str, GgufValue], key: str) -> int | None:
    value = metadata.get(key)
    if value is not None and type(value) is not int:
        raise CheckpointError(f"{path}: {key}: expected an integer, got {shown(value)}")
    return value
