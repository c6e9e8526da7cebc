"""The golden checkpoints are the same everywhere, whole, and exact in every dtype."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import unicorn_async

from .cases import CASES
from .checkpoints import golden, weights, write_checkpoint
from .demo import demo_answers, demo_weights_sha256


def test_weights_are_the_ones_that_the_references_were_made_with() -> None:
    digest = hashlib.sha256()
    for case in CASES.values():
        for name, value in weights(case):
            digest.update(name.encode() + value.tobytes())
    assert digest.hexdigest() == "56c24a5437c2c53aa0f837341442aed9870aef41de5467a1fb4a7e479362a54e"


@pytest.mark.parametrize("name", CASES)
def test_weights_are_exact_in_float16_and_bfloat16(name: str) -> None:
    for tensor, value in weights(CASES[name]):
        assert not (value.view(np.uint32) & np.uint32(0xFFFF)).any(), tensor
        np.testing.assert_array_equal(value.astype(np.float16).astype(np.float32), value, tensor)


def test_a_checkpoint_in_shards_holds_every_tensor_where_its_index_says(tmp_path: Path) -> None:
    write_checkpoint("llama", tmp_path, "float16", num_shards=3)
    places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(places) == {name for name, _ in weights(CASES["llama"])}
    for name, value in weights(CASES["llama"]):
        with safe_open(tmp_path / places[name], framework="numpy") as file:
            np.testing.assert_array_equal(file.get_tensor(name), value.astype(np.float16))


@pytest.mark.parametrize("name", CASES)
def test_a_reference_covers_short_and_long_prompts(name: str) -> None:
    reference = golden(name)
    assert [len(prompt) for prompt in reference.prompts] == [1, 7, 64, 300]
    for prompt, logits in zip(reference.prompts, reference.logits, strict=True):
        assert logits.shape == (len(prompt), len(reference.vocabulary))
        assert np.isfinite(logits).all()


def test_an_error_is_counted_in_deviations_and_nan_is_never_hidden() -> None:
    reference = golden("llama")
    logits = np.zeros((7, 512), np.float32)
    logits[:, reference.vocabulary] = reference.logits[1]
    assert reference.error(1, logits) == 0.0
    logits[3, reference.vocabulary[5]] += reference.deviation
    assert reference.error(1, logits) == pytest.approx(1.0)
    logits[0, reference.vocabulary[0]] = np.nan
    assert np.isnan(reference.error(1, logits))


def test_the_demo_answers_are_of_the_bundled_weights() -> None:
    weights_file = Path(unicorn_async.__file__).parent / "demo" / "model" / "model.safetensors"
    assert hashlib.sha256(weights_file.read_bytes()).hexdigest() == demo_weights_sha256()
    assert all(len(answer.continuation) == len(answer.margins) == 64 for answer in demo_answers())
    assert any("42" in answer.text for answer in demo_answers())
