"""Packages come from Debian's own source among apt's; a folder takes another's place when it is whole."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from debian_packages import GetError, mirror, replacing

EVERYONES = "http://deb.debian.org/debian"
DOCKER = """Types: deb
URIs: https://download.docker.com/linux/debian
Suites: bookworm
Components: stable
Signed-By: /etc/apt/keyrings/docker.asc
"""
OWN = """# Debian's
Types: deb deb-src
URIs: https://mirror.test/debian
# a comment between fields
Suites: bookworm
 bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
SECURITY = OWN.replace("/debian\n", "/debian-security\n").replace("bookworm\n bookworm-updates", "bookworm-security")
CDROM = "deb cdrom:[Debian GNU/Linux 12.5.0 _Bookworm_ - Official amd64 NETINST]/ bookworm main\n"


@pytest.fixture(autouse=True)
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is Debian 12."""
    release = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)


@pytest.mark.parametrize(
    ("files", "address"),
    [
        ({}, EVERYONES),
        ({"a.sources": OWN}, "https://mirror.test/debian"),
        ({"a.sources": f"{SECURITY}\n{OWN}"}, "https://mirror.test/debian"),
        ({"a.sources": SECURITY}, EVERYONES),
        ({"a.sources": OWN.replace("https:", "file:")}, EVERYONES),
        ({"a.sources": OWN.replace("https:", "mirror+file:///etc/x https:")}, "https://mirror.test/debian"),
        ({"a.sources": f"Enabled: no\n{OWN}", "b.sources": OWN.replace("mirror", "b")}, "https://b.test/debian"),
        ({"a.sources": OWN.replace("deb deb-src", "deb-src")}, EVERYONES),
        ({"docker.sources": DOCKER}, EVERYONES),
        ({"docker.sources": DOCKER.replace("stable", "main")}, EVERYONES),
        ({"docker.sources": DOCKER, "x.list": "deb http://x.test/debian bookworm main # x\n"}, "http://x.test/debian"),
        ({"x.list": "# deb http://x.test/debian bookworm main\n"}, EVERYONES),
        ({"x.list": "deb http://x.test/debian bookworm-updates main\n"}, EVERYONES),
        ({"x.list": "deb [arch=amd64 signed-by=/x.gpg] https://x.test bookworm main\n"}, EVERYONES),
        ({"x.list": f"{CDROM}deb [arch=amd64] http://y.test/debian/ bookworm main\n"}, "http://y.test/debian/"),
        ({"x.list": CDROM}, EVERYONES),
    ],
)
def test_the_mirror_is_the_one_of_debian_s_own_packages(tmp_path: Path, files: dict[str, str], address: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / "sources.list.d" / name).write_text(text)
    assert mirror(tmp_path) == address


def test_sources_in_apts_first_file_count(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://x.test/debian bookworm main\n")
    assert mirror(tmp_path) == "http://x.test/debian"


def test_sources_of_another_system_are_none_of_debian_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.list").write_text("deb http://archive.test/ubuntu jammy main\n")
    release = {"ID": "ubuntu", "VERSION_CODENAME": "jammy"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert mirror(tmp_path) == EVERYONES


def make(place: Path, text: str) -> None:
    with replacing(place) as made:
        (made / "file").write_text(text)


def test_a_folder_is_replaced_when_its_heir_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "made" / "root"
    make(place, "first")
    with pytest.raises(ZeroDivisionError), replacing(place) as made:
        (made / "file").write_text("half")
        raise ZeroDivisionError
    assert (place / "file").read_text() == "first"
    make(place, "second")
    assert (place / "file").read_text() == "second"
    assert list(place.parent.iterdir()) == [place]


def test_a_folder_of_another_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "root"
    place.mkdir()
    with pytest.raises(GetError, match="was not made by this tool"):
        make(place, "second")
    assert list(tmp_path.iterdir()) == [place] and not list(place.iterdir())
