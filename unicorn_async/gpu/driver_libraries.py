"""Keeps a driver's libraries in the process after the last instance is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_MAPPINGS = Path("/proc/self/maps")


def keep_loaded() -> None:
    """Pin every shared library that is loaded now.

    The Vulkan loader unloads a driver with its last instance. A thread that has called the driver may end after that,
    and NVIDIA's then runs what the library left for the end of the thread, which is no longer there.
    """
    if not _MAPPINGS.exists() or not hasattr(os, "RTLD_NODELETE"):
        return
    fields = (line.split(maxsplit=5) for line in _MAPPINGS.read_text().splitlines())
    paths = {parts[5] for parts in fields if len(parts) == 6 and ".so" in Path(parts[5]).name}
    for path in paths:
        with contextlib.suppress(OSError):  # not a library, or its file was replaced
            ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NODELETE)
