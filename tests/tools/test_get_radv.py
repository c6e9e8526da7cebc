"""A newer RADV is unpacked beside the system's, by sources of apt's that are its own; or a reason is said."""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import debian_packages
import get_radv

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What stands for programs of Debian's: each notes its arguments. Without network, a file beside them, apt-get ends with
# 0 nevertheless, unless it is told what an error is, and apt-cache knows no packages.
PROGRAMS = {
    "apt-get": """case "$*" in *download*) touch "$(echo "${@: -1}" | cut -d= -f1).deb";;
*update*) [[ -e ${0%/*}/offline ]] || exit 0
echo "Could not resolve 'mirror.test'" >&2; [[ "$*" != *Error-Mode=any* ]] || exit 100;; esac""",
    "apt-cache": """[[ ! -e ${0%/*}/offline ]] || exit 0
echo "${@: -1} | 25.0.7 | http://mirror.test/debian bookworm-backports/main amd64 Packages"
""",
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
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(debian_packages, "mirror", lambda: "http://mirror.test/debian")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: DEBIAN)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
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
    assert found["LD_LIBRARY_PATH"] == str(prefix / "mesa" / LIBRARIES)
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
        ("apt-get", "echo 404 Not Found >&2; exit 100", "404 Not Found"),
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
    assert not list((tmp_path / "radv").iterdir())


def test_lists_that_could_not_be_fetched_are_not_taken_for_lists_without_the_package(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / "offline").touch()
    assert get_radv.main([str(tmp_path / "radv")]) == 1
    said = capsys.readouterr().err
    assert "the package lists of bookworm-backports could not be fetched from http://mirror.test/debian" in said
    assert "Could not resolve 'mirror.test'" in said and "is not in" not in said


@pytest.mark.parametrize("network", [True, False])
def test_what_it_did_not_make_stays(programs: Path, tmp_path: Path, network: bool) -> None:
    others = [tmp_path / "radv" / name / "mine" for name in ("root", "mesa")]
    for other in others:
        other.parent.mkdir(parents=True)
        other.write_text("precious")
    if not network:
        (programs / "offline").touch()
    assert get_radv.main([str(tmp_path / "radv")]) == 1
    assert [other.read_text() for other in others] == ["precious"] * 2


def library(prefix: Path) -> Path:
    """The driver's library that a process would take."""
    return Path(get_radv.environment(prefix)["LD_LIBRARY_PATH"]) / "libvulkan_radeon.so"


def test_who_fails_after_another_was_done_leaves_the_other_s(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "radv"
    assert get_radv.main([str(prefix)]) == 0
    write(programs, "dpkg", f"{PROGRAMS['dpkg']}\n[[ $1 != -x ]] || exit 2")
    with monkeypatch.context() as patched:
        patched.setattr(get_radv, "environment", lambda prefix: {})  # it looked before the other was done
        assert get_radv.main([str(prefix)]) == 1
    assert library(prefix).is_file()


@pytest.mark.parametrize("lost", ["folder", "library", "manifest"])
def test_what_is_not_whole_is_unpacked_anew(programs: Path, tmp_path: Path, lost: str) -> None:
    prefix = tmp_path / "radv"
    assert get_radv.main([str(prefix)]) == 0
    manifest = Path(get_radv.environment(prefix)["VK_DRIVER_FILES"])
    if lost == "folder":
        library(prefix).parents[3].rename(tmp_path / "away")
    elif lost == "library":
        library(prefix).unlink()
    else:
        manifest.write_text("")
    assert not get_radv.environment(prefix)
    assert get_radv.main([str(prefix)]) == 0
    assert library(prefix).is_file() and len(list(prefix.iterdir())) == 1


def test_no_two_unpack_at_once(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(release: str, prefix: Path) -> None:
        descriptor = os.open(prefix, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)

    monkeypatch.setattr(get_radv, "get", get)
    assert get_radv.main([str(tmp_path / "radv")]) == 0


def test_what_is_printed_is_taken_as_the_script_says_whatever_the_folder_s_name(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of another")
    prefix = tmp_path / "a folder's $name"
    assert get_radv.main([str(prefix)]) == 0
    (tmp_path / "printed").write_text(capsys.readouterr().out)
    usage = next(line for line in (get_radv.__doc__ or "").splitlines() if "env" in line.split() and "$(" in line)
    command = usage.replace("tools/get_radv.py", f"cat {tmp_path / 'printed'}").partition("benchmarks/")[0]
    done = subprocess.run(
        ["bash", "-c", f"{command} printenv LD_LIBRARY_PATH VK_DRIVER_FILES"],
        capture_output=True,
        text=True,
        check=False,
    )
    libraries, manifest = done.stdout.splitlines()
    assert libraries == f"{prefix}/mesa/{LIBRARIES}:/of another"
    assert Path(manifest).is_file()


def test_a_python_without_the_project_s_packages_runs_it(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = [sys.executable, "-S", str(get_radv.__file__), "--help"]
    done = subprocess.run(script, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_other_systems_are_left_alone(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
    (programs / "dpkg-query").write_text("#!/bin/bash\nexit 1\n")
    assert get_radv.main([str(tmp_path / "radv")]) == 0  # nothing failed: the system's driver is what is tested
    printed = capsys.readouterr()
    assert not printed.out and "this is no Debian release" in printed.err
    assert not (programs / "calls").exists() and not (tmp_path / "radv").exists()
