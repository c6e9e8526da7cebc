"""What the NPU's kernels are built of: a build of other sources is stale."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from pathlib import Path

_PATTERNS = ("attention_design.py", "kernels/*.cc", "kernels/*.h")


def source_hash(folder: Path) -> str:
    """Return the SHA-256 of the kernels' and the design's sources, with their names, below a folder npu/."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _PATTERNS for path in folder.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def own_source_hash() -> str | None:
    """Return the hash of the sources that this installation or checkout carries; None where it carries none."""
    try:
        return source_hash(resource_dir("npu"))
    except ConfigError:
        return None
