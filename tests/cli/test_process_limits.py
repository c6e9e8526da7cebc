"""A server may have its connections open, and files beside them; and it keeps no memory that it has freed."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.cli.test_errors import needs_software_driver
from unicorn_async.cli.process_limits import make_room_for

if TYPE_CHECKING:
    import pytest


def test_the_soft_limit_is_raised_as_far_as_the_hard_one_and_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (1024, 4096)

    def set_limits(which: int, new: tuple[int, int]) -> None:
        nonlocal limits
        limits = new

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    assert make_room_for(100) == 100
    assert limits == (1024, 4096)
    assert make_room_for(2048) == 2048
    assert limits == (2560, 4096)
    assert make_room_for(100_000) == 3584
    assert limits == (4096, 4096)
    limits = (1024, resource.RLIM_INFINITY)
    assert make_room_for(2048) == 2048
    assert limits == (2560, resource.RLIM_INFINITY)
    limits = (64, 100)
    assert make_room_for(2048) == 50


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
from unicorn_async.cli.main import main
sys.exit(main(["demo", "--port", "0", "--device", "llvmpipe"]))
"""


@needs_software_driver
async def test_more_connections_than_files_leave_one_for_health_and_are_told_of_once() -> None:
    process = await asyncio.create_subprocess_exec(*(sys.executable, "-c", LIMITED), stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    log = b""
    try:
        while b"address" not in log:
            log += await process.stderr.readline()
        host, port = log.decode().partition("http://")[2].split()[0].split(":")
        others = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(120):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            for _, other in (*others, (reader, writer)):
                other.transport.abort()
    finally:
        process.terminate()
        log += await process.stderr.read()
        await process.wait()
    assert process.returncode == 0
    assert log.decode().count("has room for 30 connections at a time, not for --max-connections 1024") == 1


MEASURED = """
from unicorn_async.cli.process_limits import return_large_blocks

def resident_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) // 1024

return_large_blocks()
before = resident_mb()
for _ in range(3):
    blocks = [bytes(b"x") * (6 << 20) for _ in range(20)]
    between = [bytes(b"x") * 1000 for _ in range(20)]
    del blocks
print(resident_mb() - before)
"""


def test_large_blocks_go_back_to_the_system() -> None:
    printed = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True).stdout
    assert int(printed) < 20
