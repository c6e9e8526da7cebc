"""Runs the cases of one client and prints what became of each, a JSON object a line, for tools/check_clients.py."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Case = Callable[[], Awaitable[None]]

TIME_LIMIT_S = 90.0  # a software device is slow

URL = os.environ.get("UNICORN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("UNICORN_MODEL", "unicorn-demo")
KEY = os.environ.get("UNICORN_KEY", "unused")


async def _outcome(case: Case) -> str | None:
    try:
        await asyncio.wait_for(case(), TIME_LIMIT_S)
    except TimeoutError:
        return f"took more than {TIME_LIMIT_S:.0f} s"
    except Exception as exc:
        where = traceback.extract_tb(exc.__traceback__)
        own = [frame for frame in where if frame.filename == sys.argv[0]] or where
        return f"{type(exc).__name__}: {exc} (line {own[-1].lineno}: {own[-1].line})"
    return None


async def _run_all(cases: list[Case]) -> None:
    for case in cases:
        problem = await _outcome(case)
        print(json.dumps({"case": case.__name__.replace("_", " "), "problem": problem}), flush=True)


def run(package: str | None, cases: list[Case]) -> None:
    """Run the cases one after the other; the first line has the version of the package, if there is one."""
    version = None if package is None else importlib.metadata.version(package)
    print(json.dumps({"version": version}), flush=True)
    asyncio.run(_run_all(cases))
