"""Folders that the benchmarks make checkpoints in: nothing is removed that they did not make."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.test_benchmark_arguments import refusal
from unicorn_async.errors import ConfigError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import bench_model
import make_checkpoint
import model_shapes
from bench_model import WRITTEN, MadeCheckpoint

TINY = model_shapes.Shape("LlamaForCausalLM", "llama", 64, 3, 2, 1, 64, 96, 300, True)


def made(folder: Path | None, *, keep: bool = False) -> argparse.Namespace:
    return argparse.Namespace(model="llama-135m", dtype=None, layers=None, folder=folder, keep=keep, device=None)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of two layers in F16, as tools/make_checkpoint.py writes it."""
    monkeypatch.setitem(model_shapes.SHAPES, "tiny", TINY)
    monkeypatch.setitem(model_shapes.SHAPES, "wider", replace(TINY, ffn=128))
    monkeypatch.setattr(make_checkpoint, "POOL_BYTES", 1 << 16)
    folder = tmp_path / "tiny"
    monkeypatch.setattr(sys, "argv", ["make_checkpoint.py", "tiny", str(folder), "--dtype", "F16", "--layers", "2"])
    assert make_checkpoint.main() == 0
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are made in no time."""

    def make(_: MadeCheckpoint, folder: Path) -> None:
        for name in ("config.json", "model-00001-of-00001.safetensors"):
            (folder / name).write_text("{}", encoding="utf-8")

    monkeypatch.setattr(MadeCheckpoint, "make", make)
    monkeypatch.setattr(bench_model, "chosen_info", lambda _: None)


@pytest.mark.parametrize("script", ["speed decode", "speed prompt", "speed smooth", "host steps"])
def test_a_folder_with_something_else_in_it_is_refused_and_stays_as_it_is(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("one", encoding="utf-8")
    status, line = refusal(script, f"llama-135m --folder {tmp_path} --device nonsense", monkeypatch, capsys)
    assert status == 2
    assert f"--folder: {tmp_path} is neither empty nor a checkpoint" in line
    assert (tmp_path / "thesis" / "chapter").read_text(encoding="utf-8") == "one"


def test_nothing_is_made_for_a_device_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(wanted: str | None) -> None:
        raise ConfigError(f"device {wanted}")

    monkeypatch.setattr(bench_model, "chosen_info", fail)
    with pytest.raises(ConfigError), bench_model.model_path(made(tmp_path / "new")):
        pass
    assert not (tmp_path / "new").exists()


def test_a_file_as_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    status, line = refusal("speed decode", f"llama-135m --folder {tmp_path / 'file'}", monkeypatch, capsys)
    assert (status, "file is no directory" in line) == (2, True)


def test_a_folder_that_was_made_is_removed_with_the_checkpoint(tmp_path: Path) -> None:
    with bench_model.model_path(made(tmp_path / "deep" / "new")) as path:
        assert (Path(path) / "config.json").exists()
    assert not (tmp_path / "deep" / "new").exists()


def test_an_empty_folder_that_was_there_is_empty_again(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), bench_model.model_path(made(tmp_path)):
        raise RuntimeError("a measurement fails")
    assert list(tmp_path.iterdir()) == []


def test_what_others_put_beside_the_checkpoint_stays(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with bench_model.model_path(made(folder)):
        (folder / "notes").write_text("one", encoding="utf-8")
    assert [file.name for file in folder.iterdir()] == ["notes"]


def test_what_others_put_there_while_it_was_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: MadeCheckpoint, folder: Path) -> None:
        (folder / "config.json").write_text("{}", encoding="utf-8")
        (folder / "sub").mkdir()
        (folder / "notes").write_text("one", encoding="utf-8")

    monkeypatch.setattr(MadeCheckpoint, "make", make)
    with bench_model.model_path(made(tmp_path / "new")):
        pass
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["notes", "sub"]


def test_all_that_is_written_of_a_checkpoint_is_removed(tiny: Path) -> None:
    written = {file for pattern in WRITTEN for file in tiny.glob(pattern)}
    assert written == set(tiny.iterdir())


def test_a_checkpoint_that_is_kept_stays_and_its_place_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with bench_model.model_path(made(tmp_path / "new", keep=True)):
        pass
    assert (tmp_path / "new" / "config.json").exists()
    assert f"stays in {tmp_path / 'new'}" in capsys.readouterr().out


def test_what_was_made_before_making_failed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: MadeCheckpoint, folder: Path) -> None:
        (folder / "model-00001-of-00001.safetensors").write_text("", encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr(MadeCheckpoint, "make", fail)
    with pytest.raises(KeyboardInterrupt), bench_model.model_path(made(tmp_path / "new")):
        pass
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("shape", "dtype", "layers", "difference"),
    [
        ("tiny", "F16", 2, ""),
        ("tiny", "F16", None, "num_hidden_layers: expected 3, got 2"),
        ("tiny", "BF16", 2, "tensor model.embed_tokens.weight: expected ('BF16', (300, 64)), got ('F16', (300, 64))"),
        ("wider", "F16", 2, "intermediate_size: expected 128, got 96"),
        ("gemma3-1b", "F16", 2, "architectures: expected ['Gemma3ForCausalLM'], got ['LlamaForCausalLM']"),
    ],
)
def test_a_checkpoint_is_taken_for_the_shape_layers_and_dtype_alone_that_it_is(
    shape: str, dtype: str, layers: int | None, difference: str, tiny: Path
) -> None:
    assert MadeCheckpoint(shape, dtype, layers).difference(tiny) == difference


def test_tensors_that_a_checkpoint_lacks_make_it_another_one(tiny: Path) -> None:
    index = tiny / "model.safetensors.index.json"
    found = json.loads(index.read_text(encoding="utf-8"))
    del found["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(found), encoding="utf-8")
    assert MadeCheckpoint("tiny", "F16", 2).difference(tiny) != ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("wider --folder {tiny}", "tiny is not wider in BF16: intermediate_size: expected 128, got 96"),
        ("tiny --folder {tiny} --dtype F16", "tiny is not tiny in F16: num_hidden_layers: expected 3, got 2"),
        ("bogus-name-70b --folder {tiny}", "bogus-name-70b: no such folder or file"),
        ("{tiny} --layers 1", "--layers: only for a shape of tools/make_checkpoint.py"),
        ("demo --dtype F16", "--dtype: only for a shape of tools/make_checkpoint.py"),
        ("{tiny} --folder /nonexistent", "--folder: only for a shape of tools/make_checkpoint.py"),
    ],
)
def test_another_checkpoint_is_not_measured_under_a_shapes_name(
    arguments: str, named: str, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = refusal("speed decode", arguments.format(tiny=tiny), monkeypatch, capsys)
    assert status == 2
    assert named in line


def test_a_checkpoint_that_is_there_is_opened_and_stays(tiny: Path) -> None:
    options = argparse.Namespace(model="tiny", dtype="F16", layers=2, folder=tiny, keep=False, device=None)
    with bench_model.model_path(options) as path:
        assert path == str(tiny)
    assert (tiny / "config.json").exists()


def test_a_shapes_name_says_its_type_and_how_many_of_its_layers_there_are() -> None:
    assert MadeCheckpoint("llama-8b", "F16").name == "llama-8b in F16"
    assert MadeCheckpoint("llama-8b", "F16", 32).name == "llama-8b in F16"
    assert MadeCheckpoint("llama-8b", "BF16", 12).name == "llama-8b in BF16, 12 layers of 32"
