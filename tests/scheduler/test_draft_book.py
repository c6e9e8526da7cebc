"""A draft model's copies of sequences: whatever was right or wrong, each step finds in its cache what it reads."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import MAX_PROPOSED
from unicorn_async.grammar import Grammar
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.draft_book import DraftBook
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import PENDING, Sequence

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch

BLOCK, MAX_SAMPLED, MAX_BATCHED, VOCABULARY = 4, 16, 7, 10


class ToyDraft:
    """Computes a book's steps: a cell of the cache holds the tokens up to its position, and a state its last token."""

    def __init__(self, random: Random, groups: tuple[BlockGroup, ...]) -> None:
        self.random = random
        self.groups = groups
        self.cells: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.last: dict[int, int] = {}
        self.texts: dict[Sequence, list[int]] = {}
        self.states: dict[int, tuple[int, ...]] = {}  # the tokens before, by row

    def run(self, batch: Batch) -> list[int]:
        sampled: list[int] = []
        assert len(batch.scheduled) <= MAX_SAMPLED and batch.num_tokens <= MAX_BATCHED
        given = dict(batch.given)
        rows = [item.state_row for item in batch.scheduled if item.state_row >= 0]
        assert len(set(rows)) == len(rows) and len(set(given.values())) == len(given)
        assert not any(given[item.sequence] in rows for item in batch.scheduled if item.is_decode and given)
        for item in batch.scheduled:
            copy = item.sequence
            text = [*copy.prompt_ids, *copy.output_ids]
            if item.token_ids == (PENDING,):
                text = [*self.texts[copy], self.last[copy.state_index]]
            for position, token in enumerate(item.token_ids, item.start):
                assert token in (PENDING, text[position])
                self._write(copy, tuple(text[: position + 1]))
                self._read(copy, tuple(text[: position + 1]))
            if given:
                start = item.start - item.proposal
                assert start == 0 or self.states[given[copy]] == tuple(text[:start])
                if item.state_row >= 0:
                    self.states[item.state_row] = tuple(text[: item.start + item.num_tokens])
            if item.samples:
                assert item.start + item.num_tokens == len(text)
                self.texts[copy] = text
                self.last[copy.state_index] = self.random.randrange(9)
                sampled.append(self.last[copy.state_index])
        return sampled

    def _write(self, copy: Sequence, text: tuple[int, ...]) -> None:
        logical, place = divmod(len(text) - 1, BLOCK)
        for group, table in enumerate(copy.block_tables):
            self.cells[group, table[logical], place] = text

    def _read(self, copy: Sequence, text: tuple[int, ...]) -> None:
        for index, (group, table) in enumerate(zip(self.groups, copy.block_tables, strict=True)):
            first = max(len(text) - group.window, 0) if group.window else 0
            for position in range(first, len(text)):
                block = table[position // BLOCK]
                assert block >= 0
                assert self.cells[index, block, position % BLOCK] == text[: position + 1]


def made_book(
    groups: tuple[BlockGroup, ...],
    *,
    shares: bool = True,
    max_context: int = 64,
    takes_masks: bool = True,
    num_spares: int | None = None,
    max_batched: int = MAX_BATCHED,
) -> DraftBook:
    book = DraftBook(
        groups,
        BLOCK,
        max_num_seqs=3,
        max_num_batched_tokens=max_batched,
        max_sampled=MAX_SAMPLED,
        max_context=max_context,
        vocab_size=VOCABULARY,
        shares_prefixes=shares,
        takes_masks=takes_masks,
        num_spare_states=num_spares,
    )
    for number, group in enumerate(groups):
        book.add_blocks(number, range(group.num_blocks))
    return book


def draft(book: DraftBook, toy: ToyDraft, wanted: dict[Sequence, int]) -> None:
    counts = book.begin(wanted)
    for number in range(max(counts.values(), default=0)):
        book.note(counts, number, toy.run(book.step(counts, number)))
    for sequence, count in counts.items():
        assert len(book.drafted(sequence)) == count


@pytest.mark.parametrize("seed", range(40))
def test_every_step_finds_what_it_reads_and_everything_is_given_back(seed: int) -> None:
    random = Random(seed)
    windows = random.choice(((0,), (0, 9), (5,)))
    groups = tuple(BlockGroup(window, random.choice((12, 40)) + 12) for window in windows)
    num_spares = random.choice((None, 2, 7, 60))
    shares = num_spares is None and random.random() < 0.7
    book, toy = made_book(groups, shares=shares, num_spares=num_spares), ToyDraft(random, groups)
    running: list[Sequence] = []
    begin = tuple(random.randrange(9) for _ in range(12))
    num_drafted = num_right = 0
    for _ in range(120):
        if len(running) < 4 and random.random() < 0.3:
            prompt = (*begin[: random.choice((0, 6, 12))], *(random.randrange(9) for _ in range(random.randint(1, 14))))
            running.append(Sequence("r", prompt, SamplingParams(), seed=1, cache_salt=random.choice(("", "x"))))
        book.follow(running)
        lags = {sequence: book.lag(sequence) for sequence in running}
        behind = next((sequence for sequence, lag in lags.items() if lag), None)
        if behind is not None and (step := book.catch_up([behind])) is not None:
            toy.run(step)
        draft(book, toy, {one: random.randint(1, 5) for one, lag in lags.items() if lag == 0 and random.random() < 0.8})
        for sequence in running:
            drafted = list(book.drafted(sequence))
            right = drafted[: random.randint(0, len(drafted))]
            num_drafted, num_right = num_drafted + len(drafted), num_right + len(right)
            sequence.output_ids += [*right, random.randrange(9)]
            sequence.length = sequence.num_seen
            if sequence.length > 50 or random.random() < 0.05:
                sequence.finish_reason = FinishReason.STOP
        running = [sequence for sequence in running if sequence.finish_reason is None]
    assert num_drafted > num_right > 0
    book.follow([])
    assert (len(book), book.blocks_used) == (0, 0)
    if book._states is not None:
        assert sorted(book._states._spares) == list(range(3, 3 + (num_spares or 0)))


def test_a_draft_has_no_more_tokens_than_there_are_rows_for_states() -> None:
    book = made_book((BlockGroup(0, 40),), shares=False, num_spares=5)
    sequences = [Sequence("r", (1, 2, 3), SamplingParams(), seed=0) for _ in range(2)]
    assert [book.lag(sequence) for sequence in sequences] == [0, 0]
    assert list(book.begin(dict.fromkeys(sequences, 9)).values()) == [2, 3]


def test_a_draft_begun_again_for_more_sequences_has_no_more_tokens_than_their_step() -> None:
    groups = (BlockGroup(0, 40),)
    book = made_book(groups, shares=False, num_spares=9, max_batched=16)
    first, *others = (Sequence("r", tuple(range(count)), SamplingParams(), seed=0) for count in (9, 3, 3))
    book.follow([first])
    assert book.lag(first) == 0
    counts = book.begin({first: 1})
    book.step(counts, 0)  # of which nothing is proposed
    book.follow([first, *others])
    assert [book.lag(sequence) for sequence in (first, *others)] == [0, 0, 0]
    assert list(book.begin({first: 1, others[0]: 1, others[1]: 1})) == others
    assert book.lag(first) == 4
    assert book.catch_up([first]) is not None
    assert book.lag(first) == 0


def test_a_sequence_that_has_no_room_is_not_drafted_for_again() -> None:
    book = made_book((BlockGroup(0, 6),))
    long, short = (Sequence("r", (1,) * count, SamplingParams(), seed=0) for count in (20, 4))
    assert book.lag(long) is None
    assert (len(book), book.blocks_used) == (0, 0)
    assert book.lag(short) == 0
    assert book.lag(long) is None
    beyond = Sequence("r", (1,) * 63, SamplingParams(), seed=0)
    assert made_book((BlockGroup(0, 99),)).lag(beyond) is None


def test_a_copy_is_asked_as_its_sequence_but_for_what_hangs_on_other_tokens() -> None:
    book = made_book((BlockGroup(0, 20),))
    asked = SamplingParams(temperature=0.5, top_k=7, seed=3, presence_penalty=1.0, top_logprobs=2, logit_bias={3: 2.0})
    sequence = Sequence("r", (1, 2, 3), asked, seed=77)
    assert book.lag(sequence) == 0
    counts = book.begin({sequence: 2})
    first, second = book.step(counts, 0), book.step(counts, 1)
    assert [item.samples for item in first.scheduled] == [False, False, True]
    copy = first.scheduled[-1].sequence
    assert (copy.seed, copy.sampling.top_k, copy.sampling.logit_bias) == (77, 7, asked.logit_bias)
    assert not copy.sampling.has_penalties and copy.sampling.top_logprobs is None
    assert [(item.start, item.token_ids) for item in second.scheduled] == [(3, (PENDING,))]
    assert counts == {sequence: 2} and MAX_PROPOSED >= 2


def test_a_mask_that_is_known_is_the_first_drafted_token_s_alone() -> None:
    for takes_masks in (True, False):
        book = made_book((BlockGroup(0, 50),), takes_masks=takes_masks)
        sequence = Sequence("r", (1, 2, 3), SamplingParams(grammar=Grammar.choice(["a"])), seed=0)
        sequence.output_ids, sequence.mask = [4], b"mask"
        assert book.lag(sequence) == 0
        counts = book.begin({sequence: 2})
        masks = [{item.sequence.mask for item in book.step(counts, number).scheduled} for number in range(2)]
        assert masks == [{b"mask" if takes_masks else None}, {None}]


def test_copies_catch_up_together_as_far_as_a_step_has_room() -> None:
    book = made_book((BlockGroup(0, 50),), max_batched=40)
    behind = [Sequence("r", (number,) * 30, SamplingParams(), seed=0, cache_salt=str(number)) for number in range(3)]
    assert [book.lag(sequence) for sequence in behind] == [21] * 3
    batch = book.catch_up(behind)
    assert batch is not None and [part.num_tokens for part in batch.scheduled] == [29, 11]
    assert [book.lag(sequence) for sequence in behind] == [0, 10, 21]
    batch = book.catch_up(behind[1:])
    assert batch is not None and [part.start for part in batch.scheduled] == [11, 0]


def test_a_sequence_with_a_token_that_a_draft_model_has_not_gets_no_drafts() -> None:
    book = made_book((BlockGroup(0, 50),))
    asks, gets, begins = (Sequence("r", ids, SamplingParams(), seed=0) for ids in ((1, VOCABULARY), (1, 2), (3, 4)))
    assert [book.lag(sequence) for sequence in (asks, gets, begins)] == [None, 0, 0]
    gets.output_ids.append(VOCABULARY)
    book.follow([asks, gets, begins])
    assert book.lag(gets) is None
    begins.output_ids.append(VOCABULARY + 5)  # seen between the wish and the draft
    assert book.begin({begins: 2}) == {}
    assert len(book) == 0 and book.blocks_used == 0
