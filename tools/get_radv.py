#!/usr/bin/env python3
"""Gets a RADV that knows cooperative matrices on a Debian whose own is too old, to compile kernels for RDNA3.

    get_radv.py [PREFIX]     default PREFIX: radv in unicorn_async's folder of caches; prints the environment to use it
    eval env "$(tools/get_radv.py)" benchmarks/rdna3.py ...

Unpacks Mesa of the release's backports under PREFIX (debian_packages.py): nothing is installed. Mesa's other libraries
are those of the system's `mesa-vulkan-drivers`. Where that is new enough itself, or the system is no Debian, nothing is
unpacked or printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from pathlib import Path

from debian_packages import GetError, alone, debian_release, replacing, run, unpack

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # any Python 3.11 may run this, not the project's alone

from unicorn_async.engine.user_folders import cache_directory

_PACKAGES = ("mesa-vulkan-drivers", "libdrm2", "libdrm-amdgpu1")
_WITH_MATRICES = "24"  # Mesa whose RADV has them for certain
_PLACE = "mesa"  # the folder under the prefix
_DRIVER = "usr/lib/x86_64-linux-gnu/libvulkan_radeon.so"
_MANIFEST = "radeon.json"


def default_prefix() -> Path:
    """Return where it is unpacked."""
    return cache_directory() / "radv"


def environment(prefix: Path) -> dict[str, str]:
    """Return the variables with which a process takes what was unpacked under `prefix`; none where it isn't whole."""
    manifest = prefix / _PLACE / _MANIFEST
    try:
        driver = manifest.parent / json.loads(manifest.read_text())["ICD"]["library_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not driver.is_file():
        return {}
    return {"LD_LIBRARY_PATH": _library_path(driver.parent), "VK_DRIVER_FILES": str(manifest)}


def _library_path(first: Path) -> str:
    """The libraries of a folder, and behind these the ones that were asked for."""
    given = os.environ.get("LD_LIBRARY_PATH")
    return f"{first}:{given}" if given else str(first)


def get(release: str, prefix: Path) -> None:
    """Unpack it for a Debian release under `prefix`.

    Raises GetError where it can't be had.
    """
    with replacing(prefix / _PLACE) as root:
        unpack(f"{release}-backports", _PACKAGES, root)
        driver = root / _DRIVER
        needs = run("env", f"LD_LIBRARY_PATH={_library_path(driver.parent)}", "ldd", str(driver))
        missing = [line.split()[0] for line in needs.splitlines() if "not found" in line]
        if missing:
            raise GetError(f"the system lacks {', '.join(missing)} (Debian: mesa-vulkan-drivers)")
        icd = {"api_version": "1.3.0", "library_path": _DRIVER}  # as seen from the manifest's folder
        (root / _MANIFEST).write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))


def has_own() -> bool:
    """Whether the system's driver knows matrices by its version; of no package it is not known."""
    try:
        version = run("dpkg-query", "-W", "-f", "${Version}", "mesa-vulkan-drivers")
        run("dpkg", "--compare-versions", version, "ge", _WITH_MATRICES)
    except GetError:
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Get it, unless it is there."""
    parser = argparse.ArgumentParser(description="Get a RADV that knows cooperative matrices.")
    parser.add_argument("prefix", nargs="?", type=Path, default=default_prefix())
    prefix: Path = parser.parse_args(arguments).prefix.absolute()
    if has_own():
        return 0
    release = debian_release()
    if release is None or platform.machine() != "x86_64":
        print("get_radv: this is no Debian release on x86_64: the system's own driver is used", file=sys.stderr)
        return 0
    try:
        with alone(prefix):
            if not environment(prefix):
                get(release, prefix)
    except (GetError, OSError) as exc:
        print(f"get_radv: {exc}", file=sys.stderr)
        return 1
    print(*(f"{name}={shlex.quote(value)}" for name, value in environment(prefix).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
