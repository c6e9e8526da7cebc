"""A small checkpoint that becomes int8, and entries of the cache for it that no device wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.checkpoint import builders
from unicorn_async.cache.container import container_of
from unicorn_async.cache.entry import CachedTensor, CacheEntry, SourceFile
from unicorn_async.cache.key import cache_key
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.file_identity import identify_files
from unicorn_async.config import WeightScheme
from unicorn_async.ops.host_checksum import HostChecksum
from unicorn_async.tensor import LAYOUT_VERSION
from unicorn_async.weights.plan import make_plan
from unicorn_async.weights.wanted import WantedTensor

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.weights.plan import LoadPlan

WANTED = (
    WantedTensor("embed", (70, 64), -1, "embed", is_table=True),
    WantedTensor("a.norm", (9,), 0, "0.norm", as_f32=True),
    WantedTensor("a.up", (100, 64), 0, "0.up"),
    WantedTensor("norm", (64,), 1, "norm", as_f32=True),
)


def write_checkpoint(directory: Path, seed: int = 0) -> Checkpoint:
    data = {want.name: builders.tensor("BF16", *want.shape, seed=seed + i) for i, want in enumerate(WANTED)}
    names = list(data)
    return Checkpoint.read(builders.write(directory, *({name: data[name] for name in names[i::2]} for i in range(2))))


def plan_of(checkpoint: Checkpoint, scheme: WeightScheme = WeightScheme.INT8) -> LoadPlan:
    return make_plan(checkpoint, WANTED, scheme=scheme)


def key_of(checkpoint: Checkpoint, scheme: WeightScheme = WeightScheme.INT8, lora_digest: str = "") -> str:
    plan = plan_of(checkpoint, scheme)
    return cache_key(identify_files(checkpoint), checkpoint, plan, scheme=scheme, lora_digest=lora_digest)


def checksum_of(data: bytes) -> str:
    checksum = HostChecksum()
    checksum.update(memoryview(data))
    return checksum.value()


def write_entry(
    folder: CacheFolder, checkpoint: Checkpoint, *, key: str | None = None, layout_version: int = LAYOUT_VERSION
) -> CacheEntry:
    """Write an entry with random bytes."""
    plan = plan_of(checkpoint)
    container, rng, tensors = container_of(plan.destinations), np.random.default_rng(7), {}
    draft = folder.draft(key or key_of(checkpoint))
    assert draft is not None
    draft.write(memoryview(container.header), 0)
    for dest in plan.destinations:
        data = rng.integers(0, 256, dest.nbytes, np.uint8).tobytes()
        draft.write(memoryview(data), container.offsets[dest.name])
        tensors[dest.name] = CachedTensor(dest.nbytes, checksum_of(data))
    entry = CacheEntry(
        key=key or key_of(checkpoint),
        layout_version=layout_version,
        model="small",
        scheme="int8",
        lora_digest="",
        device="test",
        created=1e9,
        nbytes=container.nbytes,
        tensors=tensors,
        source_path=str(checkpoint.path),
        sources=tuple(SourceFile(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.files),
    )
    assert draft.commit(entry)
    return entry
