from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("shaders", ["shaders", "benchmarks/matrix2/shaders"])
def test_every_shader_module_belongs_to_its_sources(shaders: str) -> None:
    command = [sys.executable, ROOT / "tools" / "build_shaders.py", "--check", "--shaders", ROOT / shaders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
