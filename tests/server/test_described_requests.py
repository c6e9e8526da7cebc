"""Requests made from the served description are answered as it says: none ends in an error of the server's."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.server.conftest import Served

KEY = "a-key"
NOT_CHECKED = (
    "positive_data_acceptance",  # fields that exclude each other (`response_id` without `background`) are not described
)


@pytest.mark.whole("hundreds of requests made from the whole description")
async def test_what_is_described_is_answered_as_described(
    serve_with: Callable[[ServerOptions], AbstractAsyncContextManager[Served]], tmp_path: Path
) -> None:
    async with serve_with(ServerOptions(api_key=KEY)) as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json",
            "--header", f"Authorization: Bearer {KEY}", "--exclude-checks", ",".join(NOT_CHECKED),
            "--generation-deterministic", "--max-examples", "4", "--continue-on-failure",
            "--request-timeout", "120", "--suppress-health-check", "too_slow", "--phases", "coverage,fuzzing",
            "--no-color", "--warnings", "off",
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-12000:]
