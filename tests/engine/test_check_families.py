"""The scripts that compare families with references, alone and side by side: what they find in small models."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.golden.checkpoints import golden, write_checkpoint
from tests.ops import sampling_reference as reference
from unicorn_async.config import EngineConfig
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import check_families
import check_requests

from .invariance import distance


def test_a_wrong_logit_of_one_prompt_is_found_in_it_and_where_it_is_among_others(
    device_info: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = golden("mixtral")
    logits = np.concatenate(reference.logits[:2])
    logits[3, 5] += 0.05 * reference.deviation
    prompts = reference.prompts[:2]
    np.savez(
        tmp_path / "mixtral.npz",
        tokens=np.concatenate(prompts),
        lengths=[len(prompt) for prompt in prompts],
        vocabulary=reference.vocabulary,
        logits=logits,
        deviation=reference.deviation,
        sensitivity=json.dumps({}),
    )
    monkeypatch.setattr(check_families, "NEW_TOKENS", 2)
    monkeypatch.setattr(sys, "argv", ["check_families", str(tmp_path), "--device", str(device_info.index)])
    with pytest.raises(SystemExit) as ended:
        check_families.main()
    assert ended.value.code == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("| WRONG")
    alone, wrong, together, chunked, answers = (float(cell) for cell in line.split("|")[2:7])
    assert max(alone, answers) <= check_families.TOLERANCE
    assert min(wrong, together, chunked) == pytest.approx(0.05, abs=check_families.TOLERANCE)


@pytest.mark.parametrize("name", ["lfm2_moe", "deepseek_v2"])
def test_requests_of_a_mixture_with_states_or_latents_get_what_they_get_alone(
    name: str, device_info: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_requests, "MOST_TOKENS", 10)
    model = write_checkpoint(name, tmp_path, "float16")
    config = EngineConfig(
        device=str(device_info.index),
        max_context=256,
        max_num_seqs=8,
        max_num_batched_tokens=96,
        weight_cache=False,
        skip_tokenizer=True,
        speculation="off",
        max_mixed_step_s=None,
    )
    found = asyncio.run(check_requests.compare(model, config, 9))
    assert found.most_running > 1
    tie = check_requests.TIE * golden(name).deviation
    assert all(margin <= tie for margin in found.different.values())


def test_a_token_at_the_limit_of_a_filter_is_near_one_that_is_drawn_in_its_place() -> None:
    values = np.array([3.0, 2.0, 1.99, -9.0], np.float32)
    for seed in (8, 11, 20, 26):  # that draw the third token, unless there are two
        far = SamplingParams(temperature=1.0, seed=seed)
        near = SamplingParams(temperature=1.0, seed=seed, top_k=2)
        one = reference.drawn(values, near, seed=seed, position=7)
        assert reference.drawn(values, far, seed=seed, position=7) == 2
        assert 0.009 < distance(values, near, 7, one, 2) < 0.021  # one of both moves, or both do
        assert distance(values, far, 7, 2, 3) > 1.0
    greedy = SamplingParams(temperature=0.0)
    assert distance(values, greedy, 7, 0, 1) == 1.0
