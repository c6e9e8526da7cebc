"""What `/health` says, without a server."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

from unicorn_async.server.health import package_version

if TYPE_CHECKING:
    import pytest


def test_the_package_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def version(name: str) -> str:
        asked.append(name)
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    package_version.cache_clear()
    try:
        assert package_version() == package_version() == "1.2.3"
    finally:
        package_version.cache_clear()
    assert asked == ["unicorn-async"]
