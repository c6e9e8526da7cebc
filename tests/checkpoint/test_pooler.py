"""How embeddings are made, by what a model's files say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.checkpoint.pooler import read_pooler
from unicorn_async.errors import CheckpointError
from unicorn_async.pooling import Pooler, Pooling

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, modes: dict[str, Any] | None, *modules: str) -> None:
    if modes is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, **modes}))
    if modules:
        listed = [{"name": str(i), "type": f"sentence_transformers.models.{name}"} for i, name in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(listed))


def test_a_model_that_says_nothing_has_means_of_length_one(tmp_path: Path) -> None:
    assert read_pooler(tmp_path, None) == Pooler(Pooling.MEAN, normalises=True)
    assert read_pooler(tmp_path, {"general.architecture": "llama"}) == Pooler(Pooling.MEAN, normalises=True)


@pytest.mark.parametrize(
    ("modes", "modules", "pooler"),
    [
        ({"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "Normalize"), Pooler(Pooling.MEAN, True)),
        ({"pooling_mode_lasttoken": True}, ("Transformer", "Pooling", "Normalize"), Pooler(Pooling.LAST, True)),
        ({"pooling_mode_lasttoken": True}, ("Transformer", "Pooling"), Pooler(Pooling.LAST, False)),
        ({"pooling_mode_lasttoken": True}, (), Pooler(Pooling.LAST, True)),
    ],
)
def test_modules_and_modes_are_taken(
    tmp_path: Path, modes: dict[str, Any], modules: tuple[str, ...], pooler: Pooler
) -> None:
    write(tmp_path, modes, *modules)
    assert read_pooler(tmp_path, None) == pooler


def test_what_is_wanted_goes_before_the_mode_that_files_name(tmp_path: Path) -> None:
    assert read_pooler(tmp_path, None, Pooling.LAST) == Pooler(Pooling.LAST, normalises=True)
    write(tmp_path, {"pooling_mode_cls_token": True}, "Transformer", "Pooling")
    assert read_pooler(tmp_path, None, Pooling.MEAN) == Pooler(Pooling.MEAN, normalises=False)
    metadata = {"general.architecture": "qwen3", "qwen3.pooling_type": 2}
    assert read_pooler(tmp_path, metadata, Pooling.LAST) == Pooler(Pooling.LAST, normalises=True)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    assert "Dense" in (read_pooler(tmp_path, None, Pooling.MEAN).refusal or "")


@pytest.mark.parametrize(
    ("modes", "modules", "named"),
    [
        ({"pooling_mode_cls_token": True}, (), "pooling_mode_cls_token"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, (), "pooling_mode_max_tokens"),
        ({"pooling_mode_new": True}, (), "pooling_mode_new"),
        ({}, (), "no mode"),
        ({"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "Dense"), "Dense"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, modes: dict[str, Any], modules: tuple[str, ...], named: str
) -> None:
    write(tmp_path, modes, *modules)
    refusal = read_pooler(tmp_path, None).refusal
    assert refusal is not None and named in refusal


@pytest.mark.parametrize("text", ["[", "{}", "[]", "[5]", '[{"type": 5}]', "[" * 100_000])
def test_damaged_modules_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_pooler(tmp_path, None)


@pytest.mark.parametrize(
    ("kind", "pooler"),
    [
        (1, Pooler(Pooling.MEAN)),
        (3, Pooler(Pooling.LAST)),
        (2, Pooler(refusal="pooling_type cls is not supported")),
        ("x", Pooler(refusal="pooling_type 'x' is not supported")),
    ],
)
def test_gguf_files_say_it_in_their_metadata(tmp_path: Path, kind: object, pooler: Pooler) -> None:
    metadata = {"general.architecture": "qwen3", "qwen3.pooling_type": kind}
    assert read_pooler(tmp_path, metadata) == pooler
