"""Proposals of answers with a grammar: what it allows of drafts, and what it forces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.grammar import Grammar
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.draft_wishes import DraftRates
from unicorn_async.scheduler.guided_proposer import GuidedProposer
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.step_costs import StepCosts

from .made_scheduler import make_scheduler, schedule
from .speculating import PROMPT, add, proposed, speculating

if TYPE_CHECKING:
    from unicorn_async.scheduler.scheduler import Scheduler


def test_with_a_grammar_what_is_foreseen_is_proposed_and_its_rate_is_that_of_what_was_foreseen() -> None:
    scheduler, _ = speculating()
    sequence, speculation = add(scheduler, grammar=Grammar.choice(["a"])), scheduler.speculation
    assert speculation is not None
    sequence.mask = b"first"
    scheduler.commit(schedule(scheduler), [4])
    assert scheduler.schedule() is None  # its mask is on its way
    tokens, most = speculation.foresee(sequence, 1)
    assert tokens == (5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3)[:most]
    sequence.mask, sequence.foreseen = b"next", ((5, b"5"), (60, b"60"), (7, b"7"))
    batch = schedule(scheduler)
    assert proposed(batch) == [5, 60, 7]
    assert [sequence.mask_behind(item.proposal) for item in batch.scheduled] == [b"next", b"5", b"60", b"7"]
    scheduler.commit(batch, [5, 6, 7, 8])
    assert sequence.output_ids == [4, 5, 6]
    assert scheduler.schedule() is None
    proposer = sequence.proposer
    assert isinstance(proposer, GuidedProposer)
    speculation.foresee(sequence, 1)
    assert proposer.expected_rate == pytest.approx((1 + 0.95) / (2 + 0.95 + 1), abs=1e-3)  # right, then wrong
    sequence.mask, sequence.foreseen = b"next", ()
    assert not schedule(scheduler).has_proposals
    assert speculation.foresee(sequence, 5) == ((), 0)


def guided(scheduler: Scheduler, text: tuple[int, ...] = (60, 61), **sampling: object) -> Sequence:
    """Return a sequence with a grammar that has got its first token, 4, and of which nothing is foreseen."""
    sampled = SamplingParams(**({"max_tokens": 60, "grammar": Grammar.choice(["a"])} | sampling))
    sequence = Sequence("r", text, sampled, seed=0)
    scheduler.add(sequence)
    sequence.mask = b"first"
    scheduler.commit(schedule(scheduler), [4])
    return sequence


def test_of_a_draft_that_comes_what_a_grammar_allows_is_proposed_with_what_it_forces_and_counted_apart() -> None:
    scheduler, _ = speculating()
    sequence, speculation = guided(scheduler), scheduler.speculation
    assert speculation is not None
    speculation.drafts = rates = DraftRates()
    assert speculation.wish_drafts([sequence], 0, lambda _: 0) == []
    assert not sequence.draft_count  # what it is to draft behind is not known yet
    sequence.mask = b"next"
    speculation.wish_drafts([sequence], 0, lambda _: 0)
    assert sequence.awaits_draft
    sequence.drafted = (5, 6, 7)
    tokens, most = speculation.foresee(sequence, 1)
    assert tokens == (5, 6, 7) and most >= 3
    sequence.mask, sequence.foreseen = b"next", ((5, b"5"), (60, b"60"), (61, b"61"))  # 6 may not come
    batch = schedule(scheduler)
    assert proposed(batch) == [5, 60, 61]
    scheduler.commit(batch, [5, 60, 61, 8])
    assert (speculation.num_drafted, speculation.num_drafted_right) == (1, 1)
    assert (speculation.num_proposed, speculation.num_right) == (3, 3)
    assert rates.rate(sequence) == pytest.approx((1 + 0.95) / (2 + 0.95 + 1), abs=1e-3)  # 5 was right, 6 was not
    assert isinstance(sequence.proposer, GuidedProposer)
    speculation.foresee(sequence, 1)
    assert sequence.proposer.expected_rate == pytest.approx((1 + 0.95 + 1) / (2 + 0.95 + 1), abs=1e-2)  # 60 and 61 were


def test_a_draft_of_which_a_grammar_allows_nothing_was_wrong_and_is_not_proposed() -> None:
    scheduler, _ = speculating()
    sequence, speculation = guided(scheduler), scheduler.speculation
    assert speculation is not None
    speculation.drafts = rates = DraftRates()
    before, sequence.drafted = rates.rate(sequence), (5, 6)
    sequence.mask, sequence.foreseen = b"next", ()
    assert not schedule(scheduler).has_proposals
    assert rates.rate(sequence) < before
    assert speculation.num_drafted == 0


def test_what_the_model_itself_predicts_goes_before_text_with_a_grammar_where_it_is_likelier() -> None:
    costs = StepCosts((1, 2, 4, 8, 16))
    for size in 3 * (1, 2, 4, 8, 16):
        costs.observe(size, 1.0)
    for num_right, first in ((8, 9), (-8, 5)):
        speculation = Speculation(costs, 16, predicts=True)
        scheduler = make_scheduler(speculation=speculation, max_num_seqs=8)
        sequence = guided(scheduler, PROMPT)
        assert speculation.drafts is not None
        for _ in range(abs(num_right)):
            speculation.drafts.note(sequence, is_right=num_right > 0)
        sequence.drafted = (9,)
        tokens, _ = speculation.foresee(sequence, 1)
        assert tokens[0] == first
        assert sequence.drafted == ((9,) if num_right > 0 else ())


def test_one_mask_more_than_is_worth_it_is_asked_for() -> None:
    scheduler, costs = speculating()
    sequence, speculation = add(scheduler, grammar=Grammar.choice(["a"])), scheduler.speculation
    assert speculation is not None
    for size in (2, 4, 8, 16):
        for _ in range(3):
            costs.observe(size, 100.0)
    assert speculation.foresee(sequence, 1)[1] == 1
