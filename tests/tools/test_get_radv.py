"""A newer RADV is unpacked beside the system's, by sources of apt's that are its own; or a reason is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import debian_packages
import get_radv

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What stands for programs of Debian's: each notes its arguments.
PROGRAMS = {
    "apt-get": 'case "$*" in *download*) touch "$(echo "${@: -1}" | cut -d= -f1).deb";; esac',
    "apt-cache": 'echo "${@: -1} | 25.0.7 | http://mirror.test/debian bookworm-backports/main amd64 Packages"',
    "dpkg-query": "printf 22.3.6-1",
    "dpkg": f"""case "$1" in -x) mkdir -p "$3/{LIBRARIES}"; touch "$3/{LIBRARIES}/libvulkan_radeon.so";;
--compare-versions) exit $(( ${{2%%.*}} < $4 ));; esac""",
    "ldd": "echo 'libdrm.so.2 => somewhere'",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs before all others; what they are called with is in `calls` there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in PROGRAMS.items():
        write(folder, name, body)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(debian_packages, "mirror", lambda: "http://mirror.test/debian")
    monkeypatch.setattr(get_radv.platform, "freedesktop_os_release", lambda: DEBIAN)
    monkeypatch.setattr(get_radv.platform, "machine", lambda: "x86_64")
    return folder


def write(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f'#!/bin/bash\necho "{name} $*" >>"{folder}/calls"\n{body}\n')
    program.chmod(0o755)


def test_it_is_unpacked_once_and_apts_own_folders_stay_as_they_are(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "radv"
    assert get_radv.main([str(prefix)]) == 0
    found = get_radv.environment(prefix)
    assert found["LD_LIBRARY_PATH"] == str(prefix / "root" / LIBRARIES)
    assert capsys.readouterr().out == f"{' '.join(f'{name}={value}' for name, value in found.items())}\n"
    calls = (programs / "calls").read_text().splitlines()
    apt = [call for call in calls if call.startswith("apt-")]
    assert all("Dir::Etc::sourceparts=/dev/null" in call and "/etc/apt" not in call for call in apt)
    assert not [call for call in calls if " install" in call or call.startswith("dpkg -i")]
    assert get_radv.main([str(prefix)]) == 0
    assert not [call for call in (programs / "calls").read_text().splitlines()[len(calls) :] if "apt" in call]


def test_a_system_whose_own_driver_is_new_enough_needs_none(programs: Path, tmp_path: Path) -> None:
    write(programs, "dpkg-query", "printf 25.0.7-2")
    assert get_radv.main([str(tmp_path / "radv")]) == 0
    assert "apt-get" not in (programs / "calls").read_text()
    assert not (tmp_path / "radv").exists()


@pytest.mark.parametrize(
    ("program", "body", "reason"),
    [
        ("apt-cache", "true", "mesa-vulkan-drivers is not in bookworm-backports"),
        ("apt-get", "echo no network >&2; exit 100", "no network"),
        ("ldd", "echo 'libLLVM-15.so.1 => not found'", "the system lacks libLLVM-15.so.1"),
    ],
)
def test_what_it_can_not_have_is_said_and_nothing_is_left(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, body: str, reason: str
) -> None:
    write(programs, program, body)
    assert get_radv.main([str(tmp_path / "radv")]) == 1
    assert reason in capsys.readouterr().err
    assert not get_radv.environment(tmp_path / "radv")
    assert not (tmp_path / "radv" / "root").exists()


def test_other_systems_are_left_alone(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(get_radv.platform, "freedesktop_os_release", lambda: {"ID": "ubuntu"})
    assert get_radv.main([str(tmp_path / "radv")]) == 1
    assert "this is no Debian release" in capsys.readouterr().err
    assert "apt-" not in (programs / "calls").read_text()
