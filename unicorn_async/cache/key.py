"""What decides whether the cache has what a load would make: the checkpoint, and what becomes of it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from unicorn_async.tensor import LAYOUT_VERSION
from unicorn_async.weights.chunk import Transform

if TYPE_CHECKING:
    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.file_identity import FileIdentity
    from unicorn_async.config import WeightScheme
    from unicorn_async.weights.plan import LoadPlan

FORMAT_VERSION = 1  # of an entry's files
_KEY_DIGITS = 32
_MADE = (Transform.QUANTIZE, Transform.BLEND)


def is_made(plan: LoadPlan) -> bool:
    """Whether a load makes weights worth keeping; what is copied or laid out anew comes as fast as from a cache."""
    return any(chunk.transform in _MADE for chunk in plan.chunks)


def cache_key(
    files: tuple[FileIdentity, ...],
    checkpoint: Checkpoint,
    plan: LoadPlan,
    *,
    scheme: WeightScheme,
    lora_digest: str,
    layout_version: int = LAYOUT_VERSION,
) -> str:
    """Return the name of the entry that has what the plan makes of the checkpoint, in hexadecimal digits."""
    content = {
        "versions": [FORMAT_VERSION, layout_version],
        "scheme": scheme.value,
        "lora": lora_digest,
        "config": checkpoint.config,
        "destinations": [(dest.name, dest.shape, dest.dtype.value, dest.layer) for dest in plan.destinations],
        "tensors": sorted(
            (name, tensor.dtype, tensor.shape, tensor.file, tensor.offset, tensor.interleaved_head_rows)
            for name, tensor in checkpoint.tensors.items()
        ),
        "files": [asdict(file) for file in files],
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def is_key(name: str) -> bool:
    """Whether a folder's name may be that of an entry."""
    return re.fullmatch(rf"[0-9a-f]{{{_KEY_DIGITS}}}", name) is not None
