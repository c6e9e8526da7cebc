"""Vulkan, opened beside the imports that follow this one, as `unicorn generate` does it; for starts that are timed."""

from __future__ import annotations

import sys

from unicorn_async.gpu.instance_start import InstanceStart

VULKAN = InstanceStart() if any(argument.startswith("--started=") for argument in sys.argv) else None
