"""Takes packages of another Debian release from the mirror that apt already uses, and unpacks them beside the system.

Nothing is installed, and apt's own sources and lists stay as they are. apt checks the packages' signatures as usual.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PATIENCE = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")


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


def run(*command: str, cwd: Path | None = None) -> str:
    """Return what a command prints.

    Raises GetError where it fails, or is not there.
    """
    if shutil.which(command[0]) is None:
        raise GetError(f"{command[0]} is not here")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GetError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def unpack(release: str, packages: Iterable[str], root: Path) -> None:
    """Unpack a release's newest versions of packages under `root`, in place of what is there.

    Raises GetError where the release or a package can't be had.
    """
    with tempfile.TemporaryDirectory() as scratch:
        files = _download(release, packages, Path(scratch))
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for file in files:
            run("dpkg", "-x", str(file), str(root))


def _download(release: str, packages: Iterable[str], scratch: Path) -> list[Path]:
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "debs").mkdir()
    source = scratch / "release.list"
    source.write_text(f"deb [signed-by={_KEYRING}] {mirror()} {release} main\n")
    options: tuple[str, ...] = (
        *("-o", f"Dir::Etc::sourcelist={source}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::Lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch}"),
    )
    options += _PATIENCE
    if os.geteuid() == 0:  # apt's own user can't read a private temporary folder
        options += ("-o", "APT::Sandbox::User=root")
    run("apt-get", *options, "update", "-qq")
    for package in packages:
        rows = run("apt-cache", *options, "madison", package).splitlines()
        versions = [row.split("|")[1].strip() for row in rows if f"{release}/" in row]
        if not versions:
            raise GetError(f"{package} is not in {release} on {mirror()}")
        run("apt-get", *options, "download", "-qq", f"{package}={versions[0]}", cwd=scratch / "debs")
    return sorted((scratch / "debs").glob("*.deb"))
