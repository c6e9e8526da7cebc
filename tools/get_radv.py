#!/usr/bin/env python3
"""Gets a RADV that knows cooperative matrices on a Debian whose own is too old, to compile kernels for RDNA3.

    get_radv.py [PREFIX]     default PREFIX: radv in unicorn_async's folder of caches; prints the environment to use it
    env $(tools/get_radv.py) benchmarks/rdna3.py ...

Unpacks Mesa of the release's backports under PREFIX (debian_packages.py): nothing is installed. Mesa's other libraries
are those of the system's `mesa-vulkan-drivers`. Where that is new enough itself, nothing is unpacked or printed.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import shutil
import sys
from pathlib import Path

from debian_packages import GetError, run, unpack

from unicorn_async.engine.user_folders import cache_directory

_PACKAGES = ("mesa-vulkan-drivers", "libdrm2", "libdrm-amdgpu1")
_WITH_MATRICES = "24"  # Mesa whose RADV has them for certain
_LIBRARIES = "root/usr/lib/x86_64-linux-gnu"
_MANIFEST = "radeon.json"


def default_prefix() -> Path:
    """Return where it is unpacked."""
    return cache_directory() / "radv"


def environment(prefix: Path) -> dict[str, str]:
    """Return the variables with which a process takes what was unpacked under `prefix`; none where nothing was."""
    manifest = prefix / _MANIFEST
    if not manifest.is_file():
        return {}
    return {"LD_LIBRARY_PATH": str(prefix / _LIBRARIES), "VK_DRIVER_FILES": str(manifest)}


def get(prefix: Path) -> None:
    """Unpack it under `prefix`.

    Raises GetError where this is no Debian that offers it.
    """
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian" or "VERSION_CODENAME" not in release or platform.machine() != "x86_64":
        raise GetError("this is no Debian release on x86_64")
    unpack(f"{release['VERSION_CODENAME']}-backports", _PACKAGES, prefix / "root")
    driver = prefix / _LIBRARIES / "libvulkan_radeon.so"
    needs = run("env", f"LD_LIBRARY_PATH={driver.parent}", "ldd", str(driver))
    missing = [line.split()[0] for line in needs.splitlines() if "not found" in line]
    if missing:
        raise GetError(f"the system lacks {', '.join(missing)} (Debian: mesa-vulkan-drivers)")
    icd = {"api_version": "1.3.0", "library_path": str(driver)}
    (prefix / _MANIFEST).write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))  # the last: all is there


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
    try:
        if not environment(prefix):
            get(prefix)
    except (GetError, OSError) as exc:
        shutil.rmtree(prefix / "root", ignore_errors=True)
        print(f"get_radv: {exc}", file=sys.stderr)
        return 1
    print(*(f"{name}={shlex.quote(value)}" for name, value in environment(prefix).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
