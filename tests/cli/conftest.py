"""The demo, running in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import RUN, software_only

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Demo:
    """A running `unicorn demo`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = ""

    async def address(self) -> str:
        """Read what it prints up to the address."""
        assert self.process.stderr is not None
        while not (found := re.search(r"^address +(http://\S+)", self.printed, re.MULTILINE)):
            line = await self.process.stderr.readline()
            assert line, self.printed
            self.printed += line.decode()
        return found[1]


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    process = await asyncio.create_subprocess_exec(
        *RUN, "demo", "--port", "0", env={**os.environ, **software_only()}, stderr=asyncio.subprocess.PIPE
    )
    yield Demo(process)
    if process.returncode is None:
        process.kill()
    await process.communicate()
