from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
from pathlib import Path
from unicorn_async.gpu.instance import Instance

def libraries():
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}

instance = Instance.create()
loaded = libraries()
instance.close()
assert not loaded - libraries(), loaded - libraries()
"""


def test_a_drivers_libraries_outlive_the_instance() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
