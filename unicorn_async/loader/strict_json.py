"""JSON as a model's files must have it: an object, without a key that appears twice."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


MAX_FILE_BYTES = 100_000_000


def parse_object(data: bytes, source: str) -> dict[str, object]:
    """Return the JSON object in `data`; `source` names it in errors.

    Raises:
        CheckpointError: not UTF-8, not JSON, nested too deeply, not an object, or a key appears twice.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CheckpointError(f"{source}: key {twice!r} appears twice")
        return result

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as exc:
        raise CheckpointError(f"{source}: not UTF-8 (byte {exc.start})") from exc
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{source}: not valid JSON ({exc})") from exc
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: expected a JSON object, got {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, object]:
    """Return the JSON object in the file `path`.

    Raises:
        CheckpointError: the file can't be read or is larger than any such file, or see `parse_object`.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would never end
            raise CheckpointError(f"{path}: is no regular file")
        if found.st_size > MAX_FILE_BYTES:
            raise CheckpointError(f"{path}: {found.st_size} bytes, a model's JSON file has {MAX_FILE_BYTES} at most")
        data = path.read_bytes()
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc
    return parse_object(data, str(path))
