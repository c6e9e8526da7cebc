from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .toy_store import ToyStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store() -> Iterator[ToyStore]:
    """A store whose threads are ended."""
    made = ToyStore()
    yield made
    made.folder.answers.set()
    assert made.threads.close(20) + made.growing.close(20) == []
