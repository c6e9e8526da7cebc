"""Random traffic on a toy GPU: one run of a scheduler, and what has to hold at each of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError
from unicorn_async.grammar import Grammar
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.guided_proposer import GuidedProposer
from unicorn_async.scheduler.kept_blocks import KeptBlocks
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.sequence import PENDING, Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.step_budget import StepBudget
from unicorn_async.step.buckets import bucket_sizes

from .foreseeing import AnyCosts, Foreseeing
from .toy_gpu import VOCAB_SIZE, ToyGPU, answer_alone
from .toy_keeper import ToyKeeper

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch

MAX_CONTEXT = 70
EOS_TOKEN_IDS = frozenset({3})
GRAMMAR = Grammar.choice(["a"])  # of whichever requests the host has to say what may come next


@dataclass
class World:
    """One run: a scheduler and a toy GPU of random size, and the requests so far."""

    random: Random
    groups: tuple[BlockGroup, ...]
    block_size: int
    num_frames: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prompt_lengths: tuple[int, ...] = (1, 2, 7, 8, 16, 40)
    max_step_s: float | None = None
    in_order: bool = False
    grows: bool = False
    clients: tuple[str, ...] = ("", "anna", "ben")
    shares: bool = False
    guided_share: float = 0.0  # of the requests, that have a grammar
    keeps: bool = False  # blocks outside the device's memory
    right_share: float | None = None  # of the tokens that are proposed, or nothing is
    requests: list[Sequence] = field(default_factory=list)
    cancelled: set[Sequence] = field(default_factory=set)
    num_computed: int = 0

    def __post_init__(self) -> None:
        self.gpu = ToyGPU(self.groups, self.block_size, in_order=self.in_order)
        self.scheduler = Scheduler(
            groups=self.groups,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_context=MAX_CONTEXT,
            max_waiting=1000,
            max_logit_rows=self.max_num_seqs + 3,
            eos_token_ids=EOS_TOKEN_IDS,
            step_budget=self.max_step_s and StepBudget(bucket_sizes(self.max_num_batched_tokens), self.max_step_s),
            speculation=None if self.right_share is None else Speculation(AnyCosts(self.random), 16),
            in_order=self.in_order,
            grows=self.grows,
            shares_prefixes=self.shares,
            kept=self.make_kept() if self.keeps else None,
        )
        self.keeper: ToyKeeper | None = None
        if self.scheduler.kept_prefixes is not None:
            kept = self.scheduler.kept_prefixes.kept
            self.keeper = ToyKeeper(self.random, self.scheduler, self.gpu, kept, fails=self.random.choice((0, 0.2)))
        self.texts = [[self.random.randrange(VOCAB_SIZE) for _ in range(MAX_CONTEXT)] for _ in range(3)]
        self.to_come = [range(group.num_blocks)[::-1] if self.grows else range(0) for group in self.groups]

    def make_kept(self) -> KeptBlocks:
        kept = KeptBlocks([1] * len(self.groups), disk_limit=self.random.choice((20, 200)))
        for slots in kept.slots:
            slots.add(self.random.choice((3, 8, 40)))
        return kept

    def grow(self) -> None:
        """Have some more blocks of a group, of whatever number, until all are there."""
        group = self.random.choice([index for index, blocks in enumerate(self.to_come) if blocks])
        count = self.random.randint(1, 5)
        new, self.to_come[group] = self.to_come[group][:count], self.to_come[group][count:]
        self.scheduler.add_blocks(group, new)
        if not any(self.to_come):
            assert self.scheduler.end_growth() == []

    def arrive(self) -> None:
        random = self.random
        sequence = Sequence(
            request_id=f"r{len(self.requests)}",
            prompt_ids=tuple(random.randrange(VOCAB_SIZE) for _ in range(random.choice(self.prompt_lengths))),
            sampling=SamplingParams(max_tokens=random.choice((1, 2, 25, 60, 60)), ignore_eos=random.random() < 0.8),
            seed=random.randrange(1000),
            want_logits=random.random() < 0.1,
            client=random.choice(self.clients),
        )
        if self.shares:
            self.begin_alike(sequence)
        if not sequence.want_logits and random.random() < self.guided_share:
            sequence.sampling = replace(sequence.sampling, grammar=GRAMMAR)
            sequence.mask = b"first"
        try:
            self.scheduler.add(sequence)
        except RequestError:
            return
        if self.right_share is not None:
            answer = answer_alone(sequence, self.groups, MAX_CONTEXT, frozenset())
            text = Foreseeing(self.random, self.right_share, answer)
            sequence.proposer = text if sequence.sampling.grammar is None else GuidedProposer(sequence, text)
        self.requests.append(sequence)

    def begin_alike(self, sequence: Sequence) -> None:
        """Have a request begin as others do, or go on where one has ended, perhaps with penalties or a salt."""
        random, ended = self.random, [found for found in self.requests if found.finish_reason is not None]
        text = tuple(random.choice(self.texts))[: random.randrange(MAX_CONTEXT)]
        if ended and random.random() < 0.5:
            last = random.choice(ended)
            text = (*last.prompt_ids, *last.output_ids)
        sequence.prompt_ids = (*text, *sequence.prompt_ids)[: MAX_CONTEXT - 1]
        sequence.length = len(sequence.prompt_ids)
        sequence.cache_salt = random.choice(("", "", "", "other"))
        penalty = random.choice((("", 0), ("", 0), ("", 0), ("repetition_penalty", 1.5), ("presence_penalty", 0.5)))
        if penalty[0]:
            sequence.sampling = replace(sequence.sampling, **{penalty[0]: penalty[1]})

    def cancel_one(self) -> None:
        alive = [sequence for sequence in self.requests if sequence.finish_reason is None]
        if alive:
            sequence = self.random.choice(alive)
            self.cancelled.add(sequence)
            self.scheduler.finish(sequence, FinishReason.CANCELLED)

    def submit(self) -> bool:
        """Schedule a step; False where nothing can be computed now."""
        known_only = self.random.random() < 0.2
        self.give_masks(0.5)
        batch = self.scheduler.schedule(known_only=known_only)
        if batch is None and not self.gpu.submitted and self.give_masks(1.0):
            batch = self.scheduler.schedule(known_only=known_only)
        if batch is None:
            is_restoring = any(sequence.is_restoring for sequence in self.scheduler.running)
            assert self.gpu.submitted or not self.scheduler.has_work or self.scheduler.wants_blocks or is_restoring
            assert any(self.to_come) or not self.scheduler.wants_blocks
            return False
        assert not known_only or not any(PENDING in item.token_ids for item in batch.scheduled)
        self.check(batch)
        self.num_computed += batch.num_tokens
        self.gpu.submit(batch)
        return True

    def give_masks(self, share: float) -> int:
        """Let some of those that wait for their mask have it; returns how many."""
        waiting = [
            sequence
            for sequence in self.requests
            if sequence.sampling.grammar is not None and sequence.mask is None and self.random.random() < share
        ]
        for sequence in waiting:
            sequence.mask = b"next"
            if isinstance(sequence.proposer, GuidedProposer):
                sequence.proposer.follow(sequence.output_ids)
                tokens = sequence.proposer.from_text(self.random.randrange(9))
                sequence.foreseen = tuple((token, b"then") for token in tokens)
                if self.random.random() < 0.3:  # of which the grammar takes some, perhaps, and then no more
                    drafted = tokens[: self.random.randrange(len(tokens) + 1)]
                    sequence.drafted = (*drafted, *self.random.choice(((), (VOCAB_SIZE,))))
        return len(waiting)

    def check(self, batch: Batch) -> None:
        decodes = [item.is_decode for item in batch.scheduled]
        assert decodes == sorted(decodes, reverse=True)
        assert batch.num_tokens == sum(item.num_tokens for item in batch.scheduled) <= self.max_num_batched_tokens
        assert sum(item.num_tokens if item.sequence.want_logits else item.samples for item in batch.scheduled) <= (
            self.max_num_seqs + 3
        )
        assert batch.decodes_only or not batch.has_proposals
        assert not batch.has_proposals or len(batch.scheduled) <= 16
        running, waiting = self.scheduler._places.running, list(self.scheduler._places.waiting)
        assert [sequence.place for sequence in running] == sorted(sequence.place for sequence in running)
        if self.keeper is not None:
            self.keeper.put_back &= set(waiting)
            waiting = [one for one in waiting if one not in self.keeper.put_back]
        for client in {sequence.client for sequence in waiting}:
            places = [one.place for one in (*running, *waiting) if one.client == client and one.place >= 0]
            assert places == sorted(places)
            arrivals = [one.arrival for one in waiting if one.client == client and one.place < 0]
            assert arrivals == sorted(arrivals)
        own = [item.sequence for item in batch.scheduled if not item.proposal]
        assert len(set(own)) == len(own) <= self.max_num_seqs
        for item in batch.scheduled:
            assert item.num_tokens == len(item.token_ids) > 0
            assert item.sequence.finish_reason is None
            assert item.sequence.length <= item.sequence.max_length
            if item.samples and item.sequence.sampling.grammar is not None:
                assert item.sequence.mask is not None and item.sequence.num_pending == 1
                assert item.sequence.mask_behind(item.proposal) == (b"then" if item.proposal else item.sequence.mask)

    def commit(self) -> None:
        batch, sampled = self.gpu.run_oldest()
        step_s = self.random.choice((None, 0.001 * batch.num_tokens, self.random.random()))
        for result in self.scheduler.commit(batch, sampled, step_s=step_s):
            if result.token_id is not None:
                assert result.token_id == sampled[result.row]
            assert result.finish_reason in (None, result.sequence.finish_reason)

    def run(self, num_requests: int) -> int:
        """Let requests come, go and be cancelled until all have ended; return the number of rounds."""
        rounds, to_come, arrival_rate = 0, num_requests, self.random.choice((0.1, 0.5, 0.9))
        while to_come or self.scheduler.has_work:
            rounds += 1
            while to_come and (self.random.random() < arrival_rate or not self.scheduler.has_work):
                to_come -= 1
                self.arrive()
            if self.random.random() < 0.03:
                self.cancel_one()
            if self.keeper is not None:
                self.keeper.act(times=4)
            running = [seq for seq in self.requests if seq.finish_reason is None and seq.state_index >= 0]
            oldest = min(running, key=lambda seq: seq.place, default=None)
            progress = oldest.num_scheduled if oldest else 0
            is_submitted = len(self.gpu.submitted) < self.num_frames and self.submit()
            assert oldest is None or oldest.num_scheduled >= progress
            if any(self.to_come):
                assert self.scheduler.num_preemptions == 0
                if self.random.random() < (0.5 if self.scheduler.wants_blocks else 0.02):
                    self.grow()
            if self.gpu.submitted and (not is_submitted or self.random.random() < 0.4):
                self.commit()
            assert rounds < 500 * num_requests
        return rounds

    def check_outcome(self) -> None:
        for sequence in self.requests:
            if sequence.want_logits:
                expected, reason = [], FinishReason.STOP
            else:
                expected = answer_alone(sequence, self.groups, MAX_CONTEXT, EOS_TOKEN_IDS)
                is_eos = expected[-1] in EOS_TOKEN_IDS and not sequence.sampling.ignore_eos
                reason = FinishReason.STOP if is_eos else FinishReason.LENGTH
            if sequence in self.cancelled:
                expected, reason = expected[: len(sequence.output_ids)], FinishReason.CANCELLED
            assert sequence.output_ids == expected
            assert sequence.finish_reason is reason
            left = (sequence.num_in_flight, sequence.num_pending, sequence.num_proposed)
            assert (sequence.state_index, *left) == (-1, 0, 0, 0)
        assert (self.scheduler.num_running, self.scheduler.num_waiting) == (0, 0)
        assert set(self.scheduler.blocks_used) == {0}
        assert sorted(self.scheduler._states._free) == list(range(self.max_num_seqs))


def random_world(seed: int) -> World:
    """A world of random size: every other one is crowded, with many sequences that outgrow the cache together."""
    random = Random(seed)
    is_crowded = seed % 2 == 0
    block_size = random.choice((1, 4, 8))
    groups = []
    for window in random.choice(((0,), (0, 9), (5, 0), (0, 1), (24, 2, 0), (12,))):
        alone = BlockGroup(window, 0).blocks_needed(MAX_CONTEXT, 1, block_size)
        share = random.choice((2.0, 3.0)) if is_crowded else random.choice((0.8, 1.0, 1.5, 2.5, 5.0))
        groups.append(BlockGroup(window, max(int(alone * share * (2 if is_crowded and window else 1)), 2)))
    return World(
        random=random,
        groups=tuple(groups),
        block_size=block_size,
        num_frames=random.choice((1, 2, 3)),
        max_num_seqs=8 if is_crowded else random.choice((1, 4, 8)),
        max_num_batched_tokens=random.choice((16, 64)) if is_crowded else random.choice((1, 5, 16)),
        prompt_lengths=(2, 7, 9) if is_crowded else (1, 2, 7, 8, 16, 40),
        max_step_s=random.choice((None, 1e-9, 0.01, 0.5)),
        in_order=random.random() < 0.5,
        guided_share=random.choice((0.0, 0.0, 0.3, 1.0)),
    )
