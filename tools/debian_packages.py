"""Takes packages of another Debian release from the mirror that apt already uses, and unpacks them beside the system.

Nothing is installed, and apt's own sources and lists stay as they are. apt checks the packages' signatures as usual.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PATIENCE = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")
_EVERY_MIRROR = "http://deb.debian.org/debian"
_MARKER = ".made-by-unicorn_async"
_LINE = re.compile(r"^deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)(.*)$", re.MULTILINE)


class GetError(Exception):
    """The packages can't be had here; the message says why."""


class _Source(NamedTuple):
    addresses: list[str]
    suites: list[str]
    components: list[str]
    keyring: str  # empty where the source names none

    def is_of(self, codename: str) -> bool:
        """Whether it has Debian's packages: others' sources have the release's codename, too, but keys of their own."""
        suites = [suite for suite in self.suites if not re.search(r"-security$|/", suite)]
        if "main" not in self.components or not suites:
            return False
        return "debian-archive" in self.keyring if self.keyring else codename in suites


def debian_release() -> str | None:
    """Return the codename of the Debian release that this is; None on other systems."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    return release.get("VERSION_CODENAME") if release.get("ID") == "debian" else None


def mirror(apt_folder: Path = Path("/etc/apt")) -> str:
    """Return the address among apt's sources from which this Debian's packages come; one for all where none is."""
    codename = debian_release()
    for source in _sources(apt_folder) if codename else ():
        for address in source.addresses:
            if source.is_of(codename or "") and re.match(r"https?://", address):
                return address
    return _EVERY_MIRROR


def _sources(apt_folder: Path) -> Iterator[_Source]:
    """The enabled sources of packages (apt's sources.list(5), both formats)."""
    for path in sorted((apt_folder / "sources.list.d").glob("*.sources")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
            pairs = re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza, re.MULTILINE)
            fields = {name.lower(): value.strip() for name, value in pairs}
            enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "without", "off", "disable", "0")
            if enabled and "deb" in fields.get("types", "").split():
                uris, suites, parts = (fields.get(name, "").split() for name in ("uris", "suites", "components"))
                yield _Source(uris, suites, parts, fields.get("signed-by", ""))
    for path in [apt_folder / "sources.list", *sorted((apt_folder / "sources.list.d").glob("*.list"))]:
        for options, address, suite, components in _LINE.findall(path.read_text() if path.is_file() else ""):
            keyring = re.search(r"signed-by=(\S+)", options)
            parts = components.partition("#")[0].split()
            yield _Source([address], [suite], parts, keyring[1] if keyring else "")


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


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make a folder, and wait until no other process is here with the same one; the system ends a dead one's turn."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """A new folder beside `place`, which takes its place at the block's end; after an error all is as it was.

    Raises GetError where something is there that was not made so.
    """
    if place.exists() and not (place / _MARKER).is_file():
        raise GetError(f"{place} was not made by this tool, which removes nothing of others: move it away")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{place.name}-") as scratch:
        made = Path(scratch) / "new"
        made.mkdir()
        yield made
        (made / _MARKER).touch()
        if place.exists():
            place.rename(Path(scratch) / "old")
        made.rename(place)


def unpack(release: str, packages: Iterable[str], root: Path) -> None:
    """Unpack a release's newest versions of packages under `root`, a new folder.

    Raises GetError where the release or a package can't be had.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for file in _download(release, packages, Path(scratch)):
            run("dpkg", "-x", str(file), str(root))


def _download(release: str, packages: Iterable[str], scratch: Path) -> list[Path]:
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "debs").mkdir()
    source, address = scratch / "release.list", mirror()
    source.write_text(f"deb [signed-by={_KEYRING}] {address} {release} main\n")
    options: tuple[str, ...] = (
        *("-o", f"Dir::Etc::sourcelist={source}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::Lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch}"),
    )
    options += _PATIENCE
    if os.geteuid() == 0:  # apt's own user can't read a private temporary folder
        options += ("-o", "APT::Sandbox::User=root")
    try:  # without the mode a list that can't be had is a warning, and apt-get ends with 0
        run("apt-get", *options, "-o", "APT::Update::Error-Mode=any", "update", "-qq")
    except GetError as exc:
        raise GetError(f"the package lists of {release} could not be fetched from {address}: {exc}") from exc
    for package in packages:
        rows = run("apt-cache", *options, "madison", package).splitlines()
        versions = [row.split("|")[1].strip() for row in rows if f"{release}/" in row]
        if not versions:
            raise GetError(f"{package} is not in {release} on {address}")
        run("apt-get", *options, "download", "-qq", f"{package}={versions[0]}", cwd=scratch / "debs")
    return sorted((scratch / "debs").glob("*.deb"))
