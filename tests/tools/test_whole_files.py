"""Files that tools write: what can't be made, or has no place, is said in a line, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import make_checkpoint
import make_gguf
import model_shapes
from whole_files import whole_file

if TYPE_CHECKING:
    from types import ModuleType

TINY = model_shapes.Shape("LlamaForCausalLM", "llama", 64, 3, 2, 1, 64, 96, 300, True)


class Usage(NamedTuple):
    """What a disk has."""

    total: int
    used: int
    free: int


def refusal(
    script: ModuleType, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a script says in its last line when it ends."""
    monkeypatch.setitem(model_shapes.SHAPES, "tiny", TINY)
    monkeypatch.setattr(script, "POOL_BYTES", 1 << 16)
    monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
    with pytest.raises(SystemExit) as ended:
        script.main()
    return ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("layers", ["0", "-1", "two", "1.5", "", "99999999"])
def test_no_layers_are_no_model(
    layers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made"
    wanted = f"layers: expected a whole number from 1 to 1000, got {layers!r}"
    assert refusal(make_gguf, [f"tiny:F16:{layers}", str(path)], monkeypatch, capsys).endswith(wanted)
    assert refusal(make_checkpoint, ["tiny", str(path), f"--layers={layers}"], monkeypatch, capsys).endswith(wanted)
    assert not path.exists()


@pytest.mark.parametrize("vocab", ["1", "258", "4194305"])
def test_a_vocabulary_has_room_for_all_bytes(
    vocab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made"
    said = refusal(make_checkpoint, ["tiny", str(path), f"--vocab={vocab}"], monkeypatch, capsys)
    assert said.endswith(f"--vocab: expected a whole number from 259 to 4194304, got {vocab!r}")
    assert not path.exists()


def test_a_folder_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "m.gguf"
    assert refusal(make_gguf, ["tiny:F16:1", str(path)], monkeypatch, capsys) == (
        f"{path}: there is no folder {path.parent}"
    )
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "model"
    assert refusal(make_checkpoint, ["tiny", str(below)], monkeypatch, capsys) == f"{below}: Not a directory"


def test_a_disk_that_is_too_full_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 1 << 30, 1000))
    path = tmp_path / "m.gguf"
    said = refusal(make_gguf, ["tiny:F16:1", str(path)], monkeypatch, capsys)
    assert said == f"{path}: would have 0.00 GB, on a disk with room for 0.00 GB"
    assert not path.exists()


def test_a_disk_that_fills_meanwhile_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    path = tmp_path / "m.gguf"
    said = refusal(make_gguf, ["tiny:F16:1", str(path)], monkeypatch, capsys)
    assert said == f"{path}: No space left on device; what was written of it is removed"
    assert not path.exists()


def test_what_was_there_may_be_written_over_and_stays_where_it_may_not(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a", 4) as file:
        file.write(b"once")
    with whole_file(tmp_path / "a", 5) as file:
        file.write(b"twice")
    assert (tmp_path / "a").read_bytes() == b"twice"
    (tmp_path / "b").mkdir()
    with pytest.raises(SystemExit, match="b: Is a directory"), whole_file(tmp_path / "b", 1):
        pass
    assert (tmp_path / "b").is_dir()


def test_what_is_no_file_of_its_own_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("link", "pipe"):
            with pytest.raises(SystemExit, match=f"{name}: No space left on device$"), whole_file(tmp_path / name, 0):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            assert os.path.lexists(tmp_path / name)
    finally:
        os.close(reader)


def test_who_interrupts_a_file_leaves_no_part_of_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "part", 4) as file:
        file.write(b"part")
        raise KeyboardInterrupt
    assert not (tmp_path / "part").exists()
