"""Mixtures of experts, quantised while they load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.golden.checkpoints import golden
from unicorn_async.config import WeightScheme

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine


@pytest.mark.parametrize(("scheme", "layout", "tolerance"), [("int8", "q8", 0.1), ("int4", "q4", 0.6)])
async def test_experts_are_quantised_while_they_load(
    scheme: str, layout: str, tolerance: float, open_engine: OpenEngine
) -> None:
    """Some tokens take other experts then; most of them don't."""
    reference = golden("qwen3_moe")
    async with open_engine("qwen3_moe", "float16", weights=WeightScheme(scheme)) as engine:
        for prompt, expected in zip(reference.prompts, reference.logits, strict=True):
            logits = await engine.logits(prompt)
            assert np.isfinite(logits).all()
            errors = np.abs(logits[:, reference.vocabulary] - expected).max(axis=1) / reference.deviation
            assert np.median(errors) <= tolerance
        await engine.loaded()
        assert {"route", "expert_tiles", "expert_sum", f"expert_quant_vec_{layout}", "linear_vec_f32"} <= set(
            engine.kernels
        )
