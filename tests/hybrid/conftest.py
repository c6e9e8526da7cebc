"""Machines with an NPU for engines, and engines on small models, as tests of the engine have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import device_info, model_directory, open_engine
from tests.engine.leftovers import no_leftovers
from unicorn_async.config import AttentionKind, AttentionTarget
from unicorn_async.npu.geometry import NPU1

from .npu_machine import NpuMachine, npu_machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

__all__ = ["device_info", "machine", "model_directory", "open_engine"]  # fixtures


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NpuMachine]:
    """A machine with an NPU, which engines find as long as the test runs; nothing of it may be left in use.

    The test's parameter is its chip, npu1 without one.
    """
    chip, kernels = getattr(request, "param", NPU1), request.config.cache.mkdir("npu-kernels")
    with npu_machine(tmp_path, kernels, chip, monkeypatch) as made:
        yield made


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of an engine may be left when the test is over."""
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def there(device_info: DeviceInfo) -> AttentionTarget:
    """Attention on a second logical device of the GPU under test."""
    return AttentionTarget(AttentionKind.VULKAN, str(device_info.index))
