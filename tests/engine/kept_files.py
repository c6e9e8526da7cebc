"""An engine's blocks on disk: when they may be used, and files of them that are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .answers import prompt_of

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.engine.engine import Engine
    from unicorn_async.kv_store.store import KVStore

PROMPTS = [prompt_of(150, seed) for seed in range(4)]


async def ready_store(engine: Engine) -> KVStore:
    await engine.loaded()
    store = engine._model.kv_store
    assert store is not None
    await store.is_settled.wait()
    return store


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)


def flip_all(folder: Path, group: int) -> int:
    files = list(folder.glob(f"*/{group}-*.kv"))
    for file in files:
        flip(file)
    return len(files)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def counts(disk: Path) -> tuple[int, int]:
    """Return how many files of blocks there are, and how many of such as are not whole."""
    return len(list(disk.glob("*/*.kv"))), len(list(disk.glob("*/*.part")))
