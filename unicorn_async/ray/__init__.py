"""Replicas of an engine behind one address, on Ray Serve: `serve run unicorn_async.ray:build model=demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve import Application

__all__ = ["build"]


def build(args: Mapping[str, object]) -> Application:
    """Return the application that `serve run` starts; `Arguments` in `arguments.py` has what may be given.

    Raises:
        ConfigError: the arguments can't be.
    """
    from unicorn_async.ray.application import application  # what reads the arguments alone needs no Ray
    from unicorn_async.ray.arguments import Arguments

    return application(Arguments.parse(args))
