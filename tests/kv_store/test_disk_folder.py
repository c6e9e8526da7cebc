"""The folder of blocks on a disk: what is written is read again, and what is damaged, left or others' is told apart."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import CacheError
from unicorn_async.kv_store import disk_folder
from unicorn_async.kv_store.block_file import file_nbytes
from unicorn_async.kv_store.disk_folder import DiskFolder, idle_files, prune_idle
from unicorn_async.scheduler.kept_blocks import BlockName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = (96, 64)
KEY, OTHER = "0" * 32, "1" * 32
NAMES = [BlockName(0, bytes([number] * 16)) for number in range(4)]
DATA = memoryview(bytes(range(96)))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DiskFolder]:
    made = DiskFolder(tmp_path / "kv", KEY, SIZES)
    assert made.open() == {}
    yield made
    made.close()


def reopened(folder: DiskFolder) -> dict[BlockName, int]:
    folder.close()
    return folder.open()


def test_what_was_written_is_there_again_in_the_order_of_use(folder: DiskFolder, tmp_path: Path) -> None:
    for age, name in enumerate(NAMES):
        assert folder.write(name, DATA) == file_nbytes(96)
        file = tmp_path / "kv" / KEY / f"0-{name.key.hex()}.kv"
        assert file.stat().st_mode & 0o777 == 0o600
        os.utime(file, (1000 - age, 1000 - age))
    assert list(reopened(folder)) == NAMES[::-1]
    folder.used([NAMES[3]])
    assert list(reopened(folder)) == [*NAMES[2::-1], NAMES[3]]
    into = bytearray(96)
    folder.read(NAMES[0], memoryview(into))
    assert into == DATA


@pytest.mark.parametrize("clock_ns", [10**18, 0], ids=["stands still", "was set back"])
def test_the_order_of_use_is_kept_whatever_the_clock_does(
    folder: DiskFolder, monkeypatch: pytest.MonkeyPatch, clock_ns: int
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    for name in NAMES[::-1]:
        folder.write(name, DATA)
    assert list(reopened(folder)) == NAMES[::-1]
    monkeypatch.setattr(time, "time_ns", lambda: clock_ns)
    folder.used([NAMES[2], NAMES[3]])
    assert list(reopened(folder)) == [NAMES[1], NAMES[0], NAMES[2], NAMES[3]]


def test_files_of_one_time_are_in_the_order_of_their_names(folder: DiskFolder, tmp_path: Path) -> None:
    for name in (NAMES[2], NAMES[0], NAMES[3], NAMES[1]):
        folder.write(name, DATA)
    for file in (tmp_path / "kv" / KEY).glob("*.kv"):
        os.utime(file, (1000, 1000))
    assert list(reopened(folder)) == NAMES


def test_a_file_under_another_name_is_damaged_and_removed(folder: DiskFolder, tmp_path: Path) -> None:
    folder.write(NAMES[0], DATA)
    own = tmp_path / "kv" / KEY
    (own / f"0-{NAMES[0].key.hex()}.kv").rename(own / f"0-{NAMES[1].key.hex()}.kv")
    with pytest.raises(CacheError, match="not those of its checksum"):
        folder.read(NAMES[1], memoryview(bytearray(96)))
    assert reopened(folder) == {}


def test_a_file_that_cannot_be_read_is_removed(folder: DiskFolder, tmp_path: Path) -> None:
    folder.write(NAMES[0], DATA)
    file = tmp_path / "kv" / KEY / f"0-{NAMES[0].key.hex()}.kv"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        folder.read(NAMES[0], memoryview(bytearray(96)))
    assert not file.is_symlink()
    assert (tmp_path / "elsewhere").exists()


def test_a_process_without_file_descriptors_removes_no_file(
    folder: DiskFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(NAMES[0], DATA)

    def failing(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Too many open files"):
        patched.setattr(disk_folder, "read_block", failing)
        folder.read(NAMES[0], memoryview(bytearray(96)))
    assert list(reopened(folder)) == NAMES[:1]


def test_files_that_go_while_a_folder_is_looked_at_are_passed_over(folder: DiskFolder, tmp_path: Path) -> None:
    for name in NAMES:
        folder.write(name, DATA)
    folder.close()
    found = idle_files(tmp_path / "kv")
    next(found)
    shutil.rmtree(tmp_path / "kv" / KEY)
    assert list(found) == [] and list(idle_files(tmp_path / "kv")) == []


def test_a_file_that_cannot_be_removed_keeps_no_other_from_it(folder: DiskFolder, tmp_path: Path) -> None:
    folder.write(NAMES[1], DATA)
    (tmp_path / "kv" / KEY / f"0-{NAMES[0].key.hex()}.kv").mkdir()
    with pytest.raises(IsADirectoryError):
        folder.remove(NAMES[:2])
    assert reopened(folder) == {}


def test_what_a_killed_server_left_is_removed_and_what_is_no_block_is_left_alone(
    folder: DiskFolder, tmp_path: Path
) -> None:
    own = tmp_path / "kv" / KEY
    for file in ("0-00.kv.part", f"0-{'00' * 16}.kv", f"7-{'00' * 16}.kv", "letter.txt"):
        (own / file).write_bytes(b"half")
    assert reopened(folder) == {}
    assert sorted(path.name for path in own.iterdir()) == ["letter.txt", "lock"]


def test_a_folder_that_was_deleted_is_made_anew(folder: DiskFolder, tmp_path: Path) -> None:
    own = tmp_path / "kv" / KEY
    (own / "lock").unlink()
    own.rmdir()
    with pytest.raises(FileNotFoundError):
        folder.read(NAMES[0], memoryview(bytearray(96)))
    folder.write(NAMES[0], DATA)
    assert list(reopened(folder)) == [NAMES[0]]


def test_blocks_of_other_models_go_too_unless_somebody_has_them_open(folder: DiskFolder, tmp_path: Path) -> None:
    folder.write(NAMES[0], DATA)
    other = DiskFolder(tmp_path / "kv", OTHER, SIZES)
    found = other.open()
    assert found == {}  # the first model is in use
    other.write(NAMES[1], DATA)
    other.close()
    found = reopened(folder)
    assert sorted(found.values()) == [file_nbytes(96)] * 2
    folder.remove(name for name in found if name.group < 0)
    assert other.open() == {}
    other.close()
    assert prune_idle(tmp_path / "kv") == (0, 0)
    folder.close()
    assert prune_idle(tmp_path / "kv") == (1, file_nbytes(96))


def test_nothing_is_removed_of_a_model_that_was_opened_meanwhile(folder: DiskFolder, tmp_path: Path) -> None:
    folder.write(NAMES[0], DATA)
    folder.close()
    other = DiskFolder(tmp_path / "kv", OTHER, SIZES)
    found = other.open()  # of a model that nobody has open
    assert len(found) == 1
    assert list(folder.open()) == [NAMES[0]]
    other.remove(found)
    folder.read(NAMES[0], memoryview(bytearray(96)))
    folder.close()
    other.remove(found)
    other.close()
    assert folder.open() == {}


def test_pruning_removes_nothing_of_a_model_that_is_opened_meanwhile(
    folder: DiskFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_behind(root: Path, *, but: str = "") -> list[tuple[int, BlockName, int]]:
        files = list(idle_files(root, but=but))
        if not but:
            folder.open()
        return files

    folder.write(NAMES[0], DATA)
    folder.close()
    monkeypatch.setattr("unicorn_async.kv_store.disk_folder.idle_files", opened_behind)
    assert prune_idle(tmp_path / "kv") == (0, 0)
    assert list(reopened(folder)) == [NAMES[0]]


def test_who_lost_the_folder_leaves_it_to_who_has_made_it_anew(folder: DiskFolder, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "kv")
    second = DiskFolder(tmp_path / "kv", KEY, SIZES)
    assert second.open() == {}
    second.write(NAMES[0], DATA)
    with pytest.raises(CacheError, match="this process keeps this model's blocks there already"):
        folder.write(NAMES[1], DATA)
    folder.remove([NAMES[0]])
    assert list(reopened(second)) == [NAMES[0]]
    second.close()
    folder.write(NAMES[1], DATA)
    assert list(reopened(folder)) == [NAMES[0], NAMES[1]]


def test_a_folder_in_whose_place_is_a_file_is_not_open_until_it_is_had_again(
    folder: DiskFolder, tmp_path: Path
) -> None:
    folder.write(NAMES[0], DATA)
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "kv").write_text("")
    with pytest.raises(CacheError, match="what is in the folder's place is none"):
        folder.used([NAMES[0]])
    assert not folder.is_open
    with pytest.raises(CacheError, match="what is in the folder's place is none"):
        folder.write(NAMES[1], DATA)
    (tmp_path / "kv").unlink()
    folder.write(NAMES[1], DATA)
    assert folder.is_open and folder.found_anew() == {}


def test_who_lost_the_folder_is_told_once_what_is_there_now(folder: DiskFolder, tmp_path: Path) -> None:
    folder.write(NAMES[0], DATA)
    folder.write(NAMES[1], DATA)
    assert folder.found_anew() is None
    (tmp_path / "kv").rename(tmp_path / "moved")
    folder.used([NAMES[0]])
    assert folder.found_anew() == {}
    folder.write(NAMES[2], DATA)
    assert folder.found_anew() is None
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "moved").rename(tmp_path / "kv")
    folder.write(NAMES[3], DATA)
    found = folder.found_anew()
    assert found is not None and list(found) == NAMES[:2]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_folder_in_which_nobody_could_look_is_left_and_looked_at_by_the_next_try(
    folder: DiskFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    folder.write(NAMES[0], DATA)
    (tmp_path / "kv").rename(tmp_path / "moved")
    with monkeypatch.context() as patched:
        patched.setattr(disk_folder, "idle_files", failing)
        with pytest.raises(type(error)):
            folder.write(NAMES[1], DATA)
        with pytest.raises((CacheError, MemoryError)):
            DiskFolder(tmp_path / "kv", OTHER, SIZES).open()
    assert not folder.is_open
    folder.write(NAMES[1], DATA)
    assert folder.found_anew() == {}
    other = DiskFolder(tmp_path / "kv", OTHER, SIZES)
    assert other.open() == {}
    other.close()


def test_another_process_is_told_from_this_one(folder: DiskFolder, tmp_path: Path) -> None:
    second = DiskFolder(tmp_path / "kv", KEY, SIZES)
    with pytest.raises(CacheError, match=r"^this process keeps this model's blocks there already"):
        second.open()
    folder.close()
    hold = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / "kv" / KEY / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        with pytest.raises(CacheError, match=r"^another process keeps this model's blocks there$"):
            second.open()
        other.stdin.write(b"\n")
    assert second.open() == {}
    second.close()


def test_who_looks_whether_a_folder_is_idle_does_not_keep_it_from_who_opens_it(
    folder: DiskFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, looks = fcntl.flock, []

    def after_a_look(file: int, how: int) -> None:
        looks.append(file)
        if len(looks) == 1:
            raise BlockingIOError
        flock(file, how)

    folder.write(NAMES[0], DATA)
    folder.close()
    monkeypatch.setattr(fcntl, "flock", after_a_look)
    assert list(folder.open()) == [NAMES[0]]
    assert len(looks) == 2


def test_a_folder_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "kv" / KEY).mkdir(parents=True)
    (tmp_path / "kv").chmod(0o755)
    made = DiskFolder(tmp_path / "kv", KEY, SIZES)
    made.open()
    made.close()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kv", tmp_path / "kv" / KEY)} == {0o700}


def test_a_link_of_the_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "kv").symlink_to(tmp_path / "elsewhere")
    made = DiskFolder(tmp_path / "kv", KEY, SIZES)
    assert made.open() == {}
    made.write(NAMES[0], DATA)
    assert list(reopened(made)) == [NAMES[0]]
    made.close()
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700
    assert prune_idle(tmp_path / "kv") == (1, file_nbytes(96))


def refusal(root: Path) -> str:
    with pytest.raises(CacheError) as caught:
        DiskFolder(root, KEY, SIZES).open()
    return str(caught.value)


def test_what_is_no_folder_of_the_user_is_refused_by_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "kv"
    root.symlink_to(tmp_path / "elsewhere")
    assert refusal(root) == "the link to the folder leads to none"
    (tmp_path / "elsewhere").write_text("")
    assert refusal(root) == "what is in the folder's place is none"
    (tmp_path / "elsewhere").unlink()
    (tmp_path / "elsewhere").mkdir()
    (root / KEY).symlink_to(tmp_path)
    assert refusal(root) == "the model's folder is a link"
    monkeypatch.setattr(os, "geteuid", lambda: root.lstat().st_uid + 1)
    assert refusal(root) == "the link to the folder is somebody else's"
    assert refusal(tmp_path / "elsewhere") == "the folder is somebody else's"
