"""What a model's files recommend for its sampling."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from unicorn_async.checkpoint.recommended_sampling import recommended_sampling
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def found(folder: Path, **config: object) -> dict[str, float]:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return recommended_sampling(folder, None)


def test_a_models_own_sampling_is_found(tmp_path: Path) -> None:
    assert recommended_sampling(tmp_path, None) == {}
    said = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05}
    assert found(tmp_path, do_sample=True, eos_token_id=[1], max_new_tokens=5, **said) == said
    assert found(tmp_path, temperature=0.7) == {"temperature": 0.7}


def test_one_that_is_not_to_be_sampled_from_has_its_penalty(tmp_path: Path) -> None:
    assert found(tmp_path, do_sample=False, temperature=0.6, repetition_penalty=1.1) == {"repetition_penalty": 1.1}


def test_what_can_not_be_done_is_left_out_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert found(tmp_path, temperature=-1, top_k="many", top_p=0.9, min_p=True) == {"top_p": 0.9}
    assert "temperature: expected 0 to 100, got -1" in caplog.text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config.json: not valid JSON"):
        recommended_sampling(tmp_path, None)


def test_a_gguf_file_has_it_in_its_metadata(tmp_path: Path) -> None:
    metadata = {"general.sampling.temp": 0.949999988079071, "general.sampling.top_k": 40, "general.name": "x"}
    assert recommended_sampling(tmp_path / "x.gguf", metadata) == {"temperature": 0.95, "top_k": 40}
