from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .loading import Loading, descriptors_of, reader_threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.gpu.device import Device


@pytest.fixture(params=[True, False], ids=["direct", "staged"])
def loading(device: Device, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Loading]:
    num_buffers, objects = device.memory.num_buffers, device.live_objects()
    made = Loading(device, tmp_path, mapped=request.param)
    yield made
    made.close()
    assert device.memory.num_buffers == num_buffers
    assert device.live_objects() == objects
    assert not reader_threads()
    assert descriptors_of(made.checkpoint.files) == 0
