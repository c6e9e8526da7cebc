"""A server may have its connections open, and files beside them; and it keeps no memory that it has freed."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

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
    make_room_for(100)
    assert limits == (1024, 4096)
    make_room_for(2048)
    assert limits == (2560, 4096)
    make_room_for(100_000)
    assert limits == (4096, 4096)
    limits = (1024, resource.RLIM_INFINITY)
    make_room_for(2048)
    assert limits == (2560, resource.RLIM_INFINITY)


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
