"""Requests that join and leave at random get, token for token, what each gets alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.checkpoints import golden

from .invariance import check_invariance, random_jobs

if TYPE_CHECKING:
    from .conftest import OpenEngine


@pytest.mark.whole("that 64 random requests, left early and drawn, too, get what each gets alone")
async def test_random_weights(open_engine: OpenEngine) -> None:
    """Gemma's layout, with windows shorter than most prompts, and a cache that is too small for all at once."""
    expected = golden("gemma3")
    jobs = random_jobs(512, lengths=(1, 2, 5, 17, 33, 60, 150), most_tokens=32)
    async with open_engine(
        max_num_seqs=16, max_num_batched_tokens=96, max_context=256, kv_cache_bytes=1 << 20
    ) as engine:
        errors = [expected.error(i, await engine.logits(prompt)) for i, prompt in enumerate(expected.prompts[:3])]
        await check_invariance(engine, jobs, max(errors) * expected.deviation)
