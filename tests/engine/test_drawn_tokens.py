"""Tokens that are drawn with proposals have the probabilities of a model that proposes nothing: over many seeds.

The model is a table of logits for each text of up to two tokens, the sampling kernels and the scheduler are the real
ones. `benchmarks/drawn_tokens.py` has the same with a whole engine.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops import sampling_reference as reference
from tests.ops.sampler import Sampler
from tests.scheduler.made_scheduler import make_scheduler
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.step_costs import StepCosts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.scheduler.scheduler import Scheduler

VOCAB, LENGTH, NUM_SEEDS = 4, 3, 800
SKEW = 0.6  # of a draft's logits
PARAMS = SamplingParams(temperature=0.9, top_p=0.97, max_tokens=LENGTH + 1)
TEXTS = [text for length in range(LENGTH + 1) for text in itertools.product(range(VOCAB), repeat=length)]
PROMPT = (1, 2)


@pytest.fixture(scope="module")
def tables() -> dict[tuple[int, ...], NDArray[np.float32]]:
    rng = np.random.default_rng(7)
    return {text: rng.standard_normal(VOCAB).astype(np.float32) for text in TEXTS}


class Drawing:
    """Many answers, each of a scheduler of its own, whose steps the sampling kernels take together."""

    def __init__(self, sampler: Sampler, tables: dict[tuple[int, ...], NDArray[np.float32]]) -> None:
        self._sampler = sampler
        self._tables = tables

    def draw(self, texts: list[tuple[int, ...]], seeds: list[int], skew: float = 0.0) -> list[int]:
        """Draw what follows each text, by other logits where there is a `skew`."""
        logits = np.array([self._tables[text[:LENGTH]] for text in texts])
        positions = [len(PROMPT) + len(text) for text in texts]
        skewed = logits + skew * np.arange(VOCAB, dtype=np.float32)
        return self._sampler(skewed, [PARAMS] * len(texts), seeds=seeds, positions=positions).tokens

    def without(self, seeds: list[int]) -> list[tuple[int, ...]]:
        texts: list[tuple[int, ...]] = [()] * len(seeds)
        for _ in range(LENGTH):
            texts = [(*text, token) for text, token in zip(texts, self.draw(texts, seeds), strict=True)]
        return texts

    def with_drafts(self, seeds: list[int]) -> tuple[list[tuple[int, ...]], int, int]:
        """Return the answers, how many drafted tokens were right, and how many there were."""
        costs = StepCosts((1, 2, 4, 8))
        made = [make_scheduler(speculation=Speculation(costs, 8)) for _ in seeds]
        sequences = [Sequence("r", PROMPT, PARAMS, seed=seed) for seed in seeds]
        for scheduler, sequence in zip(made, sequences, strict=True):
            scheduler.add(sequence)
        for _ in range(LENGTH):
            self._draft(sequences)
            self._step(made, sequences)
        speculations = [scheduler.speculation for scheduler in made if scheduler.speculation is not None]
        num_right = sum(one.num_right for one in speculations)
        answers = [tuple(sequence.output_ids[:LENGTH]) for sequence in sequences]
        return answers, num_right, sum(one.num_proposed for one in speculations)

    def _draft(self, sequences: list[Sequence]) -> None:
        """Draft two tokens behind each answer that has begun, as a draft model does: by its own logits."""
        drafting = [one for one in sequences if one.output_ids and one.finish_reason is None]
        texts = [tuple(one.output_ids) for one in drafting]
        for _ in range(2) if drafting else ():
            drawn = self.draw(texts, [one.seed for one in drafting], SKEW)
            texts = [(*text, token) for text, token in zip(texts, drawn, strict=True)]
        for sequence, text in zip(drafting, texts, strict=True):
            sequence.drafted = text[-2:]

    def _step(self, made: list[Scheduler], sequences: list[Sequence]) -> None:
        batches = [scheduler.schedule() for scheduler in made]
        texts: list[tuple[int, ...]] = []
        seeds: list[int] = []
        for batch, sequence in zip(batches, sequences, strict=True):
            proposed: tuple[int, ...] = ()
            for item in batch.scheduled if batch is not None else ():
                proposed += item.token_ids if item.proposal else ()
                texts.append((*sequence.output_ids, *proposed))
                seeds.append(sequence.seed)
        drawn = iter(self.draw(texts, seeds) if texts else ())
        for scheduler, batch in zip(made, batches, strict=True):
            if batch is not None:
                scheduler.commit(batch, list(itertools.islice(drawn, batch.num_samples)))


def probabilities(tables: dict[tuple[int, ...], NDArray[np.float32]]) -> dict[tuple[int, ...], float]:
    """Return the probability of each answer, from the logits in double precision."""
    found = {(): 1.0}
    for _ in range(LENGTH):
        after: dict[tuple[int, ...], float] = {}
        for text, probability in found.items():
            logits = tables[text]
            mass = np.exp(reference.distances(logits, PARAMS.temperature)) * reference.kept(logits, PARAMS)
            after |= {(*text, token): probability * share for token, share in enumerate(mass / mass.sum())}
        found = after
    return found


def chi_square(answers: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; answers that are expected less than five times are one."""
    observed = {text: 0 for text in expected}
    for text in answers:
        observed[text] += 1
    assert not any(count for text, count in observed.items() if expected[text] == 0.0)
    cells = [(observed[text], share * len(answers)) for text, share in expected.items()]
    often = [cell for cell in cells if cell[1] >= 5.0]
    seldom = [cell for cell in cells if cell[1] < 5.0]
    often.append((sum(count for count, _ in seldom), sum(share for _, share in seldom)))
    return sum((count - share) ** 2 / share for count, share in often if share), len(often) - 1


def test_the_first_three_tokens_are_drawn_by_the_model_s_probabilities_whatever_is_drafted(
    device: Device, tables: dict[tuple[int, ...], NDArray[np.float32]]
) -> None:
    drawing, seeds = Drawing(Sampler(device), tables), list(range(1, NUM_SEEDS + 1))
    answers, num_right, num_proposed = drawing.with_drafts(seeds)
    assert 0.2 * num_proposed < num_right < 0.8 * num_proposed
    statistic, freedom = chi_square(answers, probabilities(tables))
    assert freedom > 30
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5
    assert answers == drawing.without(seeds)


def test_what_was_drafted_and_taken_as_it_is_would_show(
    device: Device, tables: dict[tuple[int, ...], NDArray[np.float32]]
) -> None:
    """A draft that is always taken has its own probabilities: so many seeds tell a wrong rule from the right one."""
    drawing, seeds = Drawing(Sampler(device), tables), list(range(1, NUM_SEEDS + 1))
    texts: list[tuple[int, ...]] = [()] * NUM_SEEDS
    for _ in range(LENGTH):
        texts = [(*text, token) for text, token in zip(texts, drawing.draw(texts, seeds, SKEW), strict=True)]
    statistic, freedom = chi_square(texts, {text: max(p, 1e-9) for text, p in probabilities(tables).items()})
    assert statistic > freedom + 4 * (2 * freedom) ** 0.5
