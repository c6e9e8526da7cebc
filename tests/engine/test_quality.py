"""What formats of weights cost the demo model, on a few held-out questions; benchmarks/quality.py asks hundreds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.gguf.demo_file import DEMO_MODEL, write_demo_directory, write_demo_gguf
from unicorn_async.config import KVDType, WeightScheme
from unicorn_async.tokenizer import Tokenizer

from .held_out import greedy, likelihood, num_equal, questions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .conftest import OpenEngine
    from .held_out import Likelihood, Question

GGUF = "gguf-"
# Kullback-Leibler divergence from the BF16 weights in nats a token: twice what benchmarks/quality.py measured on 256
# questions (docs/performance.md), because a few questions may be harder ones.
MOST_DIVERGENCE = {
    "int8": 4.6e-4,
    "int4": 2.4e-2,
    "nf4": 2.6e-2,
    "gguf-Q8_0": 4.6e-4,
    "gguf-Q6_K": 1.9e-3,
    "gguf-Q4_K": 2e-2,
}
MOST_CACHE_DIVERGENCE = 6.6e-5  # of a cache of int8, likewise
MOST_PERPLEXITY = 1.01  # of the right answers; every format had 1.003 to 1.005
FEW, MORE = 8, 16
OPTIONS = {"max_context": 1024, "max_num_seqs": 16}


def asked(count: int) -> list[Question]:
    return questions(Tokenizer.load(DEMO_MODEL), count)


def model_in(name: str, folder: Path) -> tuple[Path, WeightScheme]:
    """The demo model in a format, and the scheme to load it by."""
    if name.startswith(GGUF):
        return write_demo_gguf(folder / f"{name}.gguf", name.removeprefix(GGUF)), WeightScheme.AUTO
    return DEMO_MODEL, WeightScheme(name)


async def likelihood_of(open_engine: OpenEngine, model: Path, scheme: WeightScheme) -> Likelihood:
    async with open_engine(model, weights=scheme, **OPTIONS) as engine:
        return await likelihood(engine, asked(FEW))


async def answers_of(open_engine: OpenEngine, model: Path, those: Sequence[Question]) -> list[tuple[int, ...]]:
    async with open_engine(model, **OPTIONS) as engine:
        return await greedy(engine, those)


@pytest.mark.whole("how much each format loses of a held-out text")
async def test_no_format_loses_more_than_was_measured(open_engine: OpenEngine, tmp_path: Path) -> None:
    exact = await likelihood_of(open_engine, DEMO_MODEL, WeightScheme.AUTO)
    assert exact.perplexity <= MOST_PERPLEXITY
    found = {}
    for name in MOST_DIVERGENCE:
        one = await likelihood_of(open_engine, *model_in(name, tmp_path))
        found[name] = one.divergence_from(exact)
        assert one.perplexity <= MOST_PERPLEXITY, name
    assert not {name: value for name, value in found.items() if value > MOST_DIVERGENCE[name]}
    assert found["gguf-Q8_0"] < found["gguf-Q6_K"] < found["gguf-Q4_K"], "nothing was quantised"


@pytest.mark.whole("that Q8_0 loses next to nothing over whole answers")
async def test_q8_0_answers_as_f16_does(open_engine: OpenEngine, tmp_path: Path) -> None:
    those = asked(MORE)
    f16, q8_0 = [
        await answers_of(open_engine, write_demo_gguf(tmp_path / f"{kind}.gguf", kind), those)
        for kind in ("F16", "Q8_0")
    ]
    assert num_equal(q8_0, f16) >= MORE - 1


@pytest.mark.whole("how much a cache in int8 loses of a held-out text")
async def test_a_cache_in_int8_loses_no_more_than_was_measured(open_engine: OpenEngine) -> None:
    those = asked(FEW)
    likelihoods, answers = [], []
    for kind in (KVDType.F16, KVDType.INT8):
        async with open_engine(DEMO_MODEL, kv_dtype=kind, **OPTIONS) as engine:
            likelihoods.append(await likelihood(engine, those))
            answers.append(await greedy(engine, those))
    exact, found = likelihoods
    assert found.perplexity <= MOST_PERPLEXITY
    assert 0 < found.divergence_from(exact) <= MOST_CACHE_DIVERGENCE
    assert num_equal(*answers) >= FEW - 1


@pytest.mark.whole("that whole answers, not logits alone, are the same out of either kind of file")
@pytest.mark.parametrize("kind", ["F16", "F32", "BF16"])
async def test_a_gguf_file_answers_as_the_directory_of_its_type(
    kind: str, open_engine: OpenEngine, tmp_path: Path
) -> None:
    those = asked(FEW // 2)
    directory = DEMO_MODEL if kind == "BF16" else write_demo_directory(tmp_path / "hf", kind)
    path = write_demo_gguf(tmp_path / "model.gguf", kind)
    assert await answers_of(open_engine, path, those) == await answers_of(open_engine, directory, those)
