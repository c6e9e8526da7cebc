from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_shader_module_belongs_to_its_sources() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "build_shaders.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
