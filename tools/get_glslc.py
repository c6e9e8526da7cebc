#!/usr/bin/env python3
"""Gets a glslc that knows cooperative matrices on a Debian whose own is too old.

    get_glslc.py [PREFIX]     default PREFIX: ~/.cache/glslc; prints the path of a glslc that runs

Takes the packages of a newer Debian release from the mirror that apt already uses and unpacks them under PREFIX, beside
the system: nothing is installed, apt's own lists stay as they are. apt checks the packages' signatures as usual.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_RELEASE = "trixie"
_PACKAGES = ("glslc", "libshaderc1", "spirv-tools", "libc6", "libstdc++6", "libgcc-s1")
_TOOLS = ("glslc", "spirv-val", "spirv-opt", "spirv-dis", "spirv-as")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LOADERS = {"amd64": "usr/lib64/ld-linux-x86-64.so.2", "arm64": "usr/lib/ld-linux-aarch64.so.1"}
_LIBRARIES = {"amd64": "usr/lib/x86_64-linux-gnu", "arm64": "usr/lib/aarch64-linux-gnu"}


class GetError(Exception):
    """The packages can't be had here; the message says why."""


def mirror(apt_folder: Path = Path("/etc/apt")) -> str:
    """The first package address among apt's sources.

    Raises GetError where apt has no source.
    """
    for path in sorted((apt_folder / "sources.list.d").glob("*.sources")):
        if match := re.search(r"^URIs:\s*(\S+)", path.read_text(), re.MULTILINE):
            return match[1]
    for path in [apt_folder / "sources.list", *sorted((apt_folder / "sources.list.d").glob("*.list"))]:
        if path.is_file() and (match := re.search(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)", path.read_text(), re.MULTILINE)):
            return match[1]
    raise GetError(f"no package source in {apt_folder}")


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GetError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def _download(scratch: Path) -> list[Path]:
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "debs").mkdir()
    source = scratch / "release.list"
    source.write_text(f"deb [signed-by={_KEYRING}] {mirror()} {_RELEASE} main\n")
    options: tuple[str, ...] = (
        *("-o", f"Dir::Etc::sourcelist={source}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::Lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch}"),
    )
    if os.geteuid() == 0:  # apt's own user can't read a private temporary folder
        options += ("-o", "APT::Sandbox::User=root")
    _run("apt-get", *options, "update", "-qq")
    for package in _PACKAGES:
        rows = _run("apt-cache", *options, "madison", package).splitlines()
        versions = [row.split("|")[1].strip() for row in rows if f"{_RELEASE}/" in row]
        if not versions:
            raise GetError(f"{package} is not in {_RELEASE} on {mirror()}")
        _run("apt-get", *options, "download", "-qq", f"{package}={versions[0]}", cwd=scratch / "debs")
    return sorted((scratch / "debs").glob("*.deb"))


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
    architecture = _run("dpkg", "--print-architecture").strip()
    if architecture not in _LOADERS:
        raise GetError(f"no known place of the dynamic loader on {architecture}")
    with tempfile.TemporaryDirectory() as scratch:
        packages = _download(Path(scratch))
        shutil.rmtree(prefix, ignore_errors=True)
        (prefix / "root").mkdir(parents=True)
        (prefix / "bin").mkdir()
        for package in packages:
            _run("dpkg", "-x", str(package), str(prefix / "root"))
    for tool in _TOOLS:
        _write_wrapper(prefix, tool, architecture)
    _run(str(prefix / "bin" / "glslc"), "--version")
    return prefix / "bin" / "glslc"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Get a glslc that knows cooperative matrices.")
    parser.add_argument("prefix", nargs="?", type=Path, default=Path.home() / ".cache" / "glslc")
    prefix: Path = parser.parse_args(arguments).prefix.absolute()
    present = prefix / "bin" / "glslc"
    try:
        if present.exists():
            _run(str(present), "--version")
        print(present if present.exists() else get(prefix))
    except GetError as exc:
        print(f"get_glslc: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
