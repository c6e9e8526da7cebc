"""Folders that the benchmarks make checkpoints in: nothing is removed that they did not make."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tests.tools.test_benchmark_arguments import refusal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import model_options
from made_checkpoint import MadeCheckpoint


def made(folder: Path | None, *, keep: bool = False) -> argparse.Namespace:
    return argparse.Namespace(model="llama-135m", dtype="BF16", layers=None, folder=folder, keep=keep)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are made in no time."""

    def make(_: MadeCheckpoint, folder: Path) -> None:
        for name in ("config.json", "model-00001-of-00001.safetensors"):
            (folder / name).write_text("{}", encoding="utf-8")

    monkeypatch.setattr(MadeCheckpoint, "make", make)


@pytest.mark.parametrize("script", ["decode", "model", "prefill", "batched", "host_time", "smooth_decode"])
def test_a_folder_with_something_else_in_it_is_refused_and_stays_as_it_is(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("one", encoding="utf-8")
    status, line = refusal(script, f"llama-135m --folder {tmp_path} --device nonsense", monkeypatch, capsys)
    assert status == 2
    assert f"--folder: {tmp_path} is neither empty nor a checkpoint" in line
    assert (tmp_path / "thesis" / "chapter").read_text(encoding="utf-8") == "one"


def test_a_file_as_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    status, line = refusal("decode", f"llama-135m --folder {tmp_path / 'file'}", monkeypatch, capsys)
    assert (status, "file is no directory" in line) == (2, True)


def test_a_folder_that_was_made_is_removed_with_the_checkpoint(tmp_path: Path) -> None:
    with model_options.model_path(made(tmp_path / "deep" / "new")) as path:
        assert (Path(path) / "config.json").exists()
    assert not (tmp_path / "deep" / "new").exists()


def test_an_empty_folder_that_was_there_is_empty_again(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), model_options.model_path(made(tmp_path)):
        raise RuntimeError("a measurement fails")
    assert list(tmp_path.iterdir()) == []


def test_what_others_put_beside_the_checkpoint_stays(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with model_options.model_path(made(folder)):
        (folder / "notes").write_text("one", encoding="utf-8")
    assert [file.name for file in folder.iterdir()] == ["notes"]


def test_a_checkpoint_that_is_kept_stays_and_its_place_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with model_options.model_path(made(tmp_path / "new", keep=True)):
        pass
    assert (tmp_path / "new" / "config.json").exists()
    assert f"stays in {tmp_path / 'new'}" in capsys.readouterr().out


def test_what_was_made_before_making_failed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: MadeCheckpoint, folder: Path) -> None:
        (folder / "model-00001-of-00001.safetensors").write_text("", encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr(MadeCheckpoint, "make", fail)
    with pytest.raises(KeyboardInterrupt), model_options.model_path(made(tmp_path / "new")):
        pass
    assert not (tmp_path / "new").exists()
