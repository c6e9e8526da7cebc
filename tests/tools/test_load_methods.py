"""A measured load that does not begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "load_methods.py"


@pytest.mark.parametrize("method", ["engine", "engine-alone", "bare-memory"])
def test_memory_that_can_not_be_touched_ends_a_load_with_one_line(device: Device, method: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        method,
        str(demo_model_dir()),
        f"--device={device.info.index}",
        "--back=1e6",
    ]
    own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONASYNCIODEBUG": ""}  # either may have lines of its own
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=own)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "can't be used ahead of the clock" in done.stderr
