"""A process that answers on a disk that is full at first, and is then to be killed while it writes a block.

Arguments: the model's folder, the device's index. A line each, as JSON: the first answer's ids, and what the store was
told of the full disk; the second one's; that a block is written by half, where it stays.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.kv_store import disk_tier, keeper

from .answers import answer, prompt_of

if TYPE_CHECKING:
    from unicorn_async.kv_store.store import KVStore

FULL, WRITTEN = prompt_of(70, 0), prompt_of(150, 1)
OPTIONS: dict[str, Any] = {  # those of other tests' engines, whose compiled kernels are there
    "max_context": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "max_mixed_step_s": None,
    "weight_cache": False,
    "speculation": "off",
}
NUM_WHOLE = 5  # blocks that are written before the one that is not
_FULL_BYTES = 1024  # of a file, at most: a block has more, and its header less


async def run(model: Path, device: str) -> None:
    disk_tier._PAUSE_S = 0.0  # the next block is written at once
    keeper.DiskTier = partial(disk_tier.DiskTier, patience_s=600.0)  # type: ignore[misc, assignment]
    config = EngineConfig(device=device, kv_disk_bytes=64 << 20, **OPTIONS)
    async with Engine.open(model, config=config) as engine:
        await engine.loaded()
        store = engine._model.kv_store
        assert store is not None
        await store.is_settled.wait()
        tell((await answer_on_a_full_disk(engine, store)), store.counters.problem)
        stay_amid_a_block()
        tell((await answer(engine, WRITTEN, max_tokens=4)).ids)
        await asyncio.Event().wait()


async def answer_on_a_full_disk(engine: Engine, store: KVStore) -> list[int]:
    """Return an answer whose blocks, from the first one on, could not be written."""
    failed, note = asyncio.Event(), store.failed

    def failing(what: str, problem: str) -> None:
        note(what, problem)
        failed.set()

    store.failed = failing  # type: ignore[method-assign]
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_BYTES, most))
    ids = (await answer(engine, FULL, max_tokens=4)).ids
    await failed.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return ids


def stay_amid_a_block() -> None:
    """Have some blocks written whole, and half of the next one."""
    write, whole = os.write, []

    def writing(file: int, data: memoryview) -> int:
        if len(data) <= _FULL_BYTES:
            return write(file, data)
        if len(whole) == NUM_WHOLE:
            write(file, data[: len(data) // 2])
            tell("by half")
            threading.Event().wait()
        whole.append(file)
        return write(file, data)

    os.write = writing  # type: ignore[assignment]


def tell(*facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
