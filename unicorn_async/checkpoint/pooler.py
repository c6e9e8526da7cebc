"""How a model's makers want embeddings to be made: the files of sentence-transformers, or a GGUF file's metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.strict_json import read_json, read_object
from unicorn_async.errors import CheckpointError
from unicorn_async.pooling import Pooler, Pooling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
_MAX_BYTES = 1 << 20
_MODES = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_cls_token": None,
    "pooling_mode_max_tokens": None,
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}
# `llama_pooling_type` of llama.cpp.
_GGUF_KINDS = {1: Pooling.MEAN, 3: Pooling.LAST}
_GGUF_NAMES = {0: "none", 2: "cls", 4: "rank"}


def read_pooler(path: Path, metadata: Mapping[str, object] | None, wanted: Pooling | None = None) -> Pooler:
    """Return how the embeddings of the model at `path` are made; `metadata` is a GGUF file's.

    What is `wanted` goes before the mode that files name. A model that says nothing has the mean of all tokens, to the
    length of 1.

    Raises:
        CheckpointError: one of the files is damaged.
    """
    if metadata is not None:
        return _of_gguf(metadata) if wanted is None else Pooler(wanted)
    modules = _modules(path / MODULES)
    others = [name for name in modules if name not in ("Transformer", "Pooling", "Normalize")]
    normalises = "Normalize" in modules if modules else True
    if others:
        return Pooler(normalises=normalises, refusal=f"{MODULES}: {others[0]} is not supported")
    file = path / POOLING
    if wanted is not None or not file.exists():
        return Pooler(wanted or Pooling.MEAN, normalises)
    config = read_object(file)
    modes = [name for name in config if name.startswith("pooling_mode_") and config[name] is True]
    pooling = _MODES.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        return Pooler(normalises=normalises, refusal=f"{POOLING}: {' and '.join(modes) or 'no mode'} is not supported")
    return Pooler(pooling, normalises)


def _of_gguf(metadata: Mapping[str, object]) -> Pooler:
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if kind is None:
        return Pooler()
    pooling = _GGUF_KINDS.get(kind) if isinstance(kind, int) else None
    if pooling is None:
        shown = _GGUF_NAMES.get(kind, kind) if isinstance(kind, int) else repr(kind)[:80]
        return Pooler(refusal=f"pooling_type {shown} is not supported")
    return Pooler(pooling)


def _modules(file: Path) -> list[str]:
    """Return the names of the classes that a text goes through, none where there is no such file."""
    if not file.exists():
        return []
    try:
        listed = json.loads(read_json(file, _MAX_BYTES))
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{file}: not valid JSON ({exc})") from exc
    kinds = [item.get("type") if isinstance(item, dict) else None for item in listed] if type(listed) is list else []
    if not kinds or not all(isinstance(kind, str) for kind in kinds):
        raise CheckpointError(f"{file}: expected an array of modules, each with its type")
    return [str(kind).rpartition(".")[2][:100] for kind in kinds]
