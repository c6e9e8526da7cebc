from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .arrays import Arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device import Device


@pytest.fixture
def arrays(device: Device) -> Iterator[Arrays]:
    arrays = Arrays(device)
    yield arrays
    arrays.close()
