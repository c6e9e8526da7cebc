"""Engines on small models, as tests of the engine have them."""

from __future__ import annotations

from tests.engine.conftest import device_info, model_directory, open_engine

__all__ = ["device_info", "model_directory", "open_engine"]  # fixtures
