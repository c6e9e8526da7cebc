"""What a process imports before it opens Vulkan: the rest comes beside that, and beside the load."""

from __future__ import annotations

import subprocess
import sys

LATER = {"numpy", "tokenizers", "unicorn_async.loader.checkpoint", "unicorn_async.engine.runner"}


def modules_with(*names: str) -> set[str]:
    """Return what a process that imports these modules has imported."""
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_engines_module_leaves_for_later_what_opening_vulkan_does_not_need() -> None:
    package = "unicorn_async.engine"
    assert not LATER & modules_with(f"{package}.engine")
    assert modules_with(f"{package}.load_start", f"{package}.runner_start", f"{package}.request_stream") >= LATER
