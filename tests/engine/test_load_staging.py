"""Staging memory that a load takes: no more than its plan said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.adapters import BLENDS, write_adapter
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.loader.staging import StagingRing
from unicorn_async.lora_spec import LoraSpec

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import OpenEngine, WriteModel

ONE_BUFFER = 17 << 13  # bytes: of the largest chunk of the model that is adapted, and the pages around it


async def test_a_load_and_one_from_the_cache_stage_no_more_than_was_planned(
    open_engine: OpenEngine, model_directory: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rings: list[int] = []
    init = StagingRing.__init__

    def noted(ring: StagingRing, *args: Any, num_buffers: int, buffer_bytes: int, **rest: Any) -> None:
        rings.append(num_buffers * buffer_bytes)
        init(ring, *args, num_buffers=num_buffers, buffer_bytes=buffer_bytes, **rest)

    monkeypatch.setattr(StagingRing, "__init__", noted)
    staging = ModelFiles.read(model_directory("gemma3"), WeightScheme.INT8).staging
    planned = staging.nbytes(EngineConfig().staging_bytes)
    for _ in range(2):
        async with open_engine(weights=WeightScheme.INT8, weight_cache=True) as engine:
            report = engine.memory
            await engine.cache_settled()
        assert report.agrees is not False
    assert rings
    assert max(rings) <= planned


async def test_where_memory_is_short_the_load_stages_less_and_the_cache_has_its_size(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[int] = []
    init = StagingRing.__init__

    def noted(ring: StagingRing, *args: Any, num_buffers: int, buffer_bytes: int, **rest: Any) -> None:
        rings.append(num_buffers * buffer_bytes)
        init(ring, *args, num_buffers=num_buffers, buffer_bytes=buffer_bytes, **rest)

    async with open_engine(weights=WeightScheme.INT8) as engine:
        await engine.loaded()
        plan, most = engine._model.memory_plan, engine._model.memory_plan.staged_bytes
    if not most:
        pytest.skip("a GPU's own memory holds no staging buffers")
    monkeypatch.setattr(StagingRing, "__init__", noted)
    limit = plan.placement.total_bytes + most - 1
    async with open_engine(weights=WeightScheme.INT8, vram_bytes=limit) as engine:
        await engine.loaded()
        limited, report = engine._model.memory_plan, engine.memory
    assert limited.kv.max_context == plan.kv.max_context
    assert max(rings) <= limited.staged_bytes < most
    assert limited.placement.total_bytes + limited.staged_bytes <= limit
    assert report.agrees is not False


async def test_what_a_load_with_adapters_has_beside_the_model_is_counted_with_both_of_its_rings(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[StagingRing, int] = {}
    most = 0
    init, close = StagingRing.__init__, StagingRing.close

    def noted(ring: StagingRing, *args: Any, num_buffers: int, buffer_bytes: int, **rest: Any) -> None:
        nonlocal most
        init(ring, *args, num_buffers=num_buffers, buffer_bytes=buffer_bytes, **rest)
        held[ring] = num_buffers * buffer_bytes
        most = max(most, sum(held.values()))

    def noted_close(ring: StagingRing) -> None:
        held.pop(ring, None)
        close(ring)

    monkeypatch.setattr(StagingRing, "__init__", noted)
    monkeypatch.setattr(StagingRing, "close", noted_close)
    loras = tuple(LoraSpec(write_adapter("llama", case, tmp_path / case.name), case.weight) for case in BLENDS["llama"])
    async with open_engine("llama", loras=loras, staging_bytes=ONE_BUFFER) as engine:
        model = engine._model
        await engine.loaded()
    assert model.options.staging_bytes == ONE_BUFFER < most
    assert most <= model.transient_bytes - model.files.transient_bytes
