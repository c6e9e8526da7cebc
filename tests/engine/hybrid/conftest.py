"""Machines with an NPU for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .npu_machine import NpuMachine, npu_machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NpuMachine]:
    """A machine with an npu1, which engines find as long as the test runs; nothing of it may be left in use."""
    with npu_machine(tmp_path, request.config.cache.mkdir("npu-kernels"), monkeypatch) as made:
        yield made
