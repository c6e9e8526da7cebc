#!/usr/bin/env python3
"""Gets a glslc that knows cooperative matrices on a Debian whose own is too old.

    get_glslc.py [PREFIX]     default PREFIX: ~/.cache/glslc; prints the path of a glslc that runs

Unpacks the packages of a newer Debian release under PREFIX (debian_packages.py): nothing is installed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from debian_packages import GetError, alone, replacing, run, unpack

_RELEASE = "trixie"
_PACKAGES = ("glslc", "libshaderc1", "spirv-tools", "libc6", "libstdc++6", "libgcc-s1")
_TOOLS = ("glslc", "spirv-val", "spirv-opt", "spirv-dis", "spirv-as")
_LOADERS = {"amd64": "usr/lib64/ld-linux-x86-64.so.2", "arm64": "usr/lib/ld-linux-aarch64.so.1"}
_LIBRARIES = {"amd64": "usr/lib/x86_64-linux-gnu", "arm64": "usr/lib/aarch64-linux-gnu"}


def _write_wrapper(prefix: Path, tool: str, architecture: str) -> None:
    """A script that starts a tool with the libraries unpacked beside it instead of the system's."""
    root = prefix / "root"
    command = shlex.join(
        [
            str(root / _LOADERS[architecture]),
            "--library-path",
            str(root / _LIBRARIES[architecture]),
            str(root / "usr" / "bin" / tool),
        ]
    )
    wrapper = prefix / "bin" / tool
    wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    wrapper.chmod(0o755)


def get(prefix: Path) -> Path:
    """Unpack the compiler under `prefix`, replacing what is there; returns the path of glslc."""
    architecture = run("dpkg", "--print-architecture").strip()
    if architecture not in _LOADERS:
        raise GetError(f"no known place of the dynamic loader on {architecture}")
    with replacing(prefix / "root") as root:
        unpack(_RELEASE, _PACKAGES, root)
    (prefix / "bin").mkdir(exist_ok=True)
    for tool in _TOOLS:
        _write_wrapper(prefix, tool, architecture)
    run(str(prefix / "bin" / "glslc"), "--version")
    return prefix / "bin" / "glslc"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Get a glslc that knows cooperative matrices.")
    parser.add_argument("prefix", nargs="?", type=Path, default=Path.home() / ".cache" / "glslc")
    prefix: Path = parser.parse_args(arguments).prefix.absolute()
    present = prefix / "bin" / "glslc"
    try:
        with alone(prefix):
            if present.exists():
                run(str(present), "--version")
            print(present if present.exists() else get(prefix))
    except (GetError, OSError) as exc:
        print(f"get_glslc: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
