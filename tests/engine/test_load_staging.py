"""Staging memory that a load takes: no more than its plan said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.model_on_disk import ModelOnDisk
from unicorn_async.loader.staging import StagingRing

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from .conftest import OpenEngine, WriteModel


async def test_a_load_and_one_from_the_cache_stage_no_more_than_was_planned(
    open_engine: OpenEngine, model_directory: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rings: list[int] = []
    init = StagingRing.__init__

    def noted(ring: StagingRing, *args: Any, num_slots: int, slot_bytes: int, **rest: Any) -> None:
        rings.append(num_slots * slot_bytes)
        init(ring, *args, num_slots=num_slots, slot_bytes=slot_bytes, **rest)

    monkeypatch.setattr(StagingRing, "__init__", noted)
    planned = ModelOnDisk.read(model_directory("gemma3"), WeightScheme.INT8).most_staged(EngineConfig().staging_bytes)
    for _ in range(2):
        async with open_engine(weights=WeightScheme.INT8, weight_cache=True) as engine:
            report = engine.memory
            await engine.cache_settled()
        assert report.agrees is not False
    assert rings
    assert max(rings) <= planned
