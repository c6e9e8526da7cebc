from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .conftest import SHADERS

TOOL = Path(__file__).resolve().parents[2] / "tools" / "build_shaders.py"


def test_the_test_shaders_modules_belong_to_their_sources() -> None:
    done = subprocess.run(
        [sys.executable, TOOL, "--check", "--shaders", SHADERS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
