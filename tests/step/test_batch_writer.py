"""What the writer leaves in a frame that held other steps before, without a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tests.scheduler.foreseeing import AnyCosts, Foreseeing
from unicorn_async.config import MAX_COUNTED
from unicorn_async.grammar import Grammar
from unicorn_async.ops.runs import LAST_OF_RUN, TOKEN_RUN
from unicorn_async.ops.sample_rows import NO_BIASES, NO_MASK, NO_STATE, SAMPLE_MARK, SAMPLE_ROW
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.speculation import Speculation
from unicorn_async.scheduler.state_copies import GivenState, KeptState
from unicorn_async.step.attention_writer import AttentionWriter, GroupCut
from unicorn_async.step.batch_writer import BatchWriter
from unicorn_async.step.bias_rows import ROW_BIASES
from unicorn_async.step.frame import MOST_UNCOUNTED, Frame, FrameLimits

if TYPE_CHECKING:
    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.step.attention_arguments import AttentionArguments

LIMITS = FrameLimits(tokens=32, sequences=8, groups=2, blocks=16, tiles=16, logit_rows=16, has_runs=True)
WINDOWS = (0, 12)
BLOCK_SIZE = 4


class Grids:
    """Stands in for an attention plan with prefill tiles of so many queries."""

    def __init__(self, query_tile: int) -> None:
        self.query_tile = query_tile

    def decode_grid(self, contexts: list[int], window: int, num_tokens: int) -> tuple[int, int, int]:
        return (len(contexts), 1, 1)

    def prefill_grid(self, num_tiles: int) -> tuple[int, int, int]:
        return (num_tiles, 1, 1)


GROUPS = [GroupCut(window, cast("AttentionPlan", Grids(tile))) for window, tile in zip(WINDOWS, (8, 5), strict=True)]


class Always(AnyCosts):
    """Takes three tokens to be worth their time."""

    def __init__(self) -> None:
        super().__init__(Random(0))

    def worth(self, *_: Any, **__: Any) -> int:
        return 3


class PlainMasks(dict[int, bytes]):
    """Masks by their row."""

    def write(self, index: int, mask: bytes) -> None:
        self[index] = mask


class PlainBiases(dict[int, tuple[SamplingParams, frozenset[int]]]):
    """What biases are made of, by their row."""

    def write(self, index: int, params: SamplingParams, banned: frozenset[int]) -> None:
        self[index] = (params, banned)


@dataclass
class PlainFrame:
    """A frame's arrays in ordinary memory, filled with what nothing may read."""

    block_rows: list[Any] = field(default_factory=list)
    sampled_rows: list[Any] = field(default_factory=list)
    decodes: Any = None
    last_blocks: Any = None
    num_decodes: int = 0
    grids: Any = None
    arguments: Any = None
    masks: Any = None
    biases: Any = None
    arrays: Any = None  # those of the attention, which stand in here for an `AttentionArguments`'s

    def __post_init__(self) -> None:
        tokens, sequences, groups = LIMITS.tokens, LIMITS.sequences, LIMITS.groups
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "token_ids": (np.int32, (tokens,)),
            "positions": (np.uint32, (tokens,)),
            "logit_rows": (np.uint32, (LIMITS.logit_rows,)),
            "sample_rows": (SAMPLE_ROW, (sequences,)),
            "resets": (np.uint32, (sequences,)),
            "marks": (SAMPLE_MARK, (tokens + MOST_UNCOUNTED + MAX_COUNTED,)),
            "runs": (TOKEN_RUN, (tokens,)),
            "slot_mapping": (np.uint32, (groups, tokens)),
            "query_start": (np.uint32, (sequences,)),
            "query_len": (np.uint32, (sequences,)),
            "context_len": (np.uint32, (sequences,)),
            "block_tables": (np.uint32, (groups, sequences, LIMITS.blocks)),
            "decode_items": (np.uint32, (sequences, 2)),
            "prefill_tiles": (np.uint32, (groups, LIMITS.tiles, 2)),
            "grids": (np.uint32, (groups, 2, 3)),
        }
        arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}
        self.arguments, self.arrays = SimpleNamespace(arrays=arrays), arrays
        self.masks, self.biases = PlainMasks(), PlainBiases()
        self.last_blocks = np.zeros((groups, sequences), np.uint32)

    def seen(self, batch: Batch, num_rows: int) -> dict[str, Any]:
        """What the device reads for a batch: freed blocks, and rows of no sequence, are not among it."""
        arrays, count = self.arguments.arrays, len(batch.scheduled)
        found = {name: arrays[name][:count].tolist() for name in ("query_start", "query_len", "context_len")}
        found |= {name: arrays[name][: batch.num_tokens].tolist() for name in ("token_ids", "positions", "runs")}
        found["slot_mapping"] = arrays["slot_mapping"][:, : batch.num_tokens].tolist()
        found |= {name: arrays[name][:count].tolist() for name in ("decode_items", "grids") if batch.decodes_only}
        found["sample_rows"] = arrays["sample_rows"][: batch.num_samples].tobytes()
        found["padding"] = arrays["sample_rows"]["state_index"][batch.num_samples : num_rows].tolist()
        found["block_tables"] = [
            arrays["block_tables"][group, row, item.sequence.first_blocks[group] : len(table)].tolist()
            for row, item in enumerate(batch.scheduled)
            for group, table in enumerate(item.sequence.block_tables)
        ]
        return found


def make_scheduler(speculation: Speculation | None = None, *, shares_prefixes: bool = False) -> Scheduler:
    return Scheduler(
        speculation=speculation,
        in_order=shares_prefixes,
        shares_prefixes=shares_prefixes,
        groups=tuple(BlockGroup(window, 16) for window in WINDOWS),
        block_size=BLOCK_SIZE,
        max_num_seqs=LIMITS.sequences,
        max_num_batched_tokens=LIMITS.tokens,
        max_context=64,
        max_waiting=32,
        max_logit_rows=LIMITS.logit_rows,
        eos_token_ids=(),
        num_spare_states=40,
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_used_frame_holds_what_a_fresh_one_would(seed: int) -> None:
    rng = Random(seed)
    scheduler = make_scheduler()
    writer = BatchWriter(LIMITS)
    attention = AttentionWriter(BLOCK_SIZE, GROUPS)
    used = PlainFrame()
    for number in range(24):
        sampling = SamplingParams(max_tokens=rng.randint(1, 20), temperature=rng.choice((0.0, 0.7)))
        prompt = tuple(rng.randrange(100) for _ in range(rng.randint(1, 30)))
        scheduler.add(Sequence(str(number), prompt, sampling, seed=rng.getrandbits(64)))
    num_steps = 0
    while (batch := scheduler.schedule()) is not None:
        fresh = PlainFrame()
        shapes = [writer.write(batch, cast("Frame", frame)) for frame in (used, fresh)]
        assert shapes[0] == shapes[1]
        parts = [attention.write(batch, cast("AttentionArguments", frame), shapes[0].tokens) for frame in (used, fresh)]
        assert parts[0] == parts[1]
        assert used.seen(batch, shapes[0].samples) == fresh.seen(batch, shapes[0].samples)
        scheduler.commit(batch, [rng.randrange(100) for _ in range(batch.num_samples)])
        num_steps += 1
    assert num_steps > 30
    assert scheduler.num_preemptions > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_used_frame_holds_what_a_fresh_one_would_with_proposals(seed: int) -> None:
    rng = Random(seed)
    scheduler = make_scheduler(Speculation(AnyCosts(rng), LIMITS.sequences))
    writer = BatchWriter(LIMITS)
    attention = AttentionWriter(BLOCK_SIZE, GROUPS)
    used, num_proposed, last = PlainFrame(), 0, {}
    for number in range(8):
        sequence = Sequence(str(number), (1, 2, 3, 4), SamplingParams(max_tokens=40), seed=rng.getrandbits(64))
        sequence.proposer = Foreseeing(rng, 0.9, [5] * 40)
        scheduler.add(sequence)
        while (batch := scheduler.schedule()) is not None and scheduler.num_waiting + scheduler.num_running:
            fresh = PlainFrame()
            shapes = [writer.write(batch, cast("Frame", frame)) for frame in (used, fresh)]
            frames = [cast("AttentionArguments", frame) for frame in (used, fresh)]
            parts = [attention.write(batch, frame, shapes[0].tokens) for frame in frames]
            assert (shapes[0], parts[0]) == (shapes[1], parts[1])
            assert parts[0].has_proposals == (batch.has_proposals and shapes[0].tokens <= 4)
            assert used.seen(batch, shapes[0].samples) == fresh.seen(batch, shapes[0].samples)
            check_tokens(batch, used, last)
            check_slots(batch, used)
            num_proposed += batch.has_proposals
            tokens = [rng.choice((5, 5, 5, 6)) for _ in range(batch.num_samples)]
            sampled = [item.sequence for item in batch.scheduled if item.samples]
            last = dict(zip(sampled, tokens, strict=True))
            scheduler.commit(batch, tokens)
            if rng.random() < 0.05:
                break
    assert num_proposed > 20


def check_slots(batch: Batch, frame: PlainFrame) -> None:
    """See that keys and values go where their positions are, however many blocks a sequence has for proposals."""
    for group, slots in enumerate(frame.arrays["slot_mapping"][:, : batch.num_tokens].tolist()):
        tables = [item.sequence.block_tables[group] for item in batch.scheduled for _ in range(item.num_tokens)]
        positions = frame.arrays["positions"][: batch.num_tokens].tolist()
        places = [divmod(position, BLOCK_SIZE) for position in positions]
        expected = [table[block] * BLOCK_SIZE + at for table, (block, at) in zip(tables, places, strict=True)]
        assert slots == expected


def check_tokens(batch: Batch, frame: PlainFrame, last: dict[Sequence, int]) -> None:
    """See that the device is given each token, or has the right one in the sequence's state."""
    ids = frame.arrays["token_ids"][: batch.num_tokens].tolist()
    row = 0
    for item in batch.scheduled:
        if item.is_decode and not item.is_given:
            assert ids[row] == -1 - item.sequence.state_index
            assert item.sequence not in last or last[item.sequence] == item.sequence.output_ids[-1]
        elif item.is_decode:
            assert (ids[row],) == item.token_ids
        row += item.num_tokens


def test_a_used_frame_does_not_keep_the_states_of_sequences_that_have_others_now() -> None:
    scheduler = make_scheduler()
    writer, used = BatchWriter(LIMITS), cast("Frame", PlainFrame())
    sequences = [Sequence(str(number), (1, 2, 3), SamplingParams(max_tokens=20), seed=number) for number in range(2)]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(3):
        batch = cast("Batch", scheduler.schedule())
        writer.write(batch, used)
        scheduler.commit(batch, [5] * batch.num_samples)
    state_indices = [sequence.state_index for sequence in sequences]
    # As where both were preempted, and computed anew in other frames.
    sequences[0].state_index, sequences[1].state_index = reversed(state_indices)
    batch = cast("Batch", scheduler.schedule())
    assert batch.decodes_only
    writer.write(batch, used)
    assert used.arguments.arrays["token_ids"][:2].tolist() == [-1 - index for index in reversed(state_indices)]
    assert used.arguments.arrays["sample_rows"]["state_index"][:2].tolist() == state_indices[::-1]


def test_a_step_says_where_each_token_stands_among_those_of_its_sequence() -> None:
    scheduler, frame = make_scheduler(), cast("Frame", PlainFrame())
    for number, length in enumerate((3, 1, 2)):
        scheduler.add(Sequence(str(number), (1,) * length, SamplingParams(max_tokens=4), seed=number))
    batch = cast("Batch", scheduler.schedule())
    shape = BatchWriter(LIMITS).write(batch, frame)
    assert shape.tokens > batch.num_tokens == 6
    first, second, third = (item.sequence.state_index for item in batch.scheduled)
    runs = frame.arguments.arrays["runs"]
    assert runs["state_index"][:6].tolist() == [first] * 3 + [second] + [third] * 2
    assert set(runs["state_index"][6 : shape.tokens].tolist()) == {NO_STATE}
    last = LAST_OF_RUN
    assert runs["offset"][:6].tolist() == [0, 1, 2 + last, last, 0, 1 + last]


def test_a_step_leaves_the_state_behind_each_proposed_token_in_a_row_of_its_own() -> None:
    scheduler, frame = make_scheduler(Speculation(Always(), 8)), cast("Frame", PlainFrame())
    for number in range(2):
        sequence = Sequence(str(number), (1,) * 3, SamplingParams(max_tokens=9), seed=number)
        sequence.proposer = Foreseeing(Random(0), 1.0, [5] * 9)
        scheduler.add(sequence)
    writer, runs = BatchWriter(LIMITS), frame.arguments.arrays["runs"]
    scheduler.commit(cast("Batch", scheduler.schedule()), [5, 5])
    batch = cast("Batch", scheduler.schedule())
    writer.write(batch, frame)
    one, other = (item.sequence for item in batch.scheduled if not item.proposal)
    assert [item.sequence for item in batch.scheduled] == [one] * 4 + [other] * 4
    rows = [item.state_row for item in batch.scheduled]
    assert runs["source"][:8].tolist() == [one.state_index] * 4 + [other.state_index] * 4
    assert runs["kept"][:8].tolist() == [*rows[:3], NO_STATE, *rows[4:7], NO_STATE]
    assert runs["state_index"][:8].tolist() == [rows[3]] * 4 + [rows[7]] * 4
    assert runs["offset"][:8].tolist() == [0, 1, 2, 3 + LAST_OF_RUN] * 2
    scheduler.commit(batch, [5, 5, 6, 5, 6, 5, 5, 5])
    writer.write(cast("Batch", scheduler.schedule()), frame)
    assert runs["source"][[0, 4]].tolist() == [rows[2], rows[4]]


def test_a_step_says_which_states_sequences_begin_with_and_which_are_kept() -> None:
    scheduler, frame = make_scheduler(), cast("Frame", PlainFrame())
    for number in range(2):
        scheduler.add(Sequence(str(number), (1,) * 3, SamplingParams(max_tokens=9), seed=number))
    batch = cast("Batch", scheduler.schedule())
    one, other = (item.sequence for item in batch.scheduled)
    writer, runs = BatchWriter(LIMITS), frame.arguments.arrays["runs"]
    kept = KeptState(one, 2, 20), KeptState(other, 3, 21)
    writer.write(replace(batch, given=(GivenState(other, 22),), kept=kept), frame)
    assert runs["source"][:6].tolist() == [one.state_index] * 3 + [22] * 3
    assert runs["kept"][:6].tolist() == [NO_STATE, 20, NO_STATE, NO_STATE, NO_STATE, 21]
    scheduler.commit(batch, [5, 5])
    for kept in ((), (KeptState(other, 5, 20),), (), ()):
        batch = cast("Batch", scheduler.schedule())
        assert batch.feeds_itself
        writer.write(replace(batch, kept=kept), frame)
        assert runs["source"][:2].tolist() == [one.state_index, other.state_index]
        assert runs["kept"][:2].tolist() == [NO_STATE, 20 if kept else NO_STATE]
        scheduler.commit(batch, [5, 5])


def test_tokens_that_are_found_and_not_computed_are_counted_for_a_repetition_penalty_alone() -> None:
    scheduler, writer, prompt = make_scheduler(shares_prefixes=True), BatchWriter(LIMITS), (5, 6, 5, 7, 8, 5, 9)
    marked = []
    for penalty in ({}, {"repetition_penalty": 1.5}, {"presence_penalty": 0.5}):
        sequence = Sequence("r", prompt, SamplingParams(max_tokens=1, **penalty), seed=0)
        frame = PlainFrame()
        scheduler.add(sequence)
        batch = cast("Batch", scheduler.schedule())
        shape = writer.write(batch, cast("Frame", frame))
        marks = frame.arrays["marks"][: shape.num_marks]
        marked.append(marks["token"][marks["state_index"] != NO_STATE].tolist() if shape.has_counts else [])
        assert shape.has_found == ("repetition_penalty" in penalty)
        scheduler.commit(batch, [3])
    assert marked == [[], [5, 6, 7, 8, 5, 9], [8, 5, 9]]  # four are found, of which three are different


def test_masks_are_written_for_each_step_and_named_in_their_rows() -> None:
    scheduler = make_scheduler()
    writer, used = BatchWriter(LIMITS), PlainFrame()
    grammar = Grammar.choice(["a"])
    sequences = [
        Sequence(
            str(number),
            (1, 2, 3),
            SamplingParams(max_tokens=20, ignore_eos=True, grammar=grammar if number % 2 else None),
            seed=number,
        )
        for number in range(4)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    for step in range(6):
        for number in (1, 3):
            sequences[number].mask = b"%d %d" % (step, number)
        batch = scheduler.schedule()
        assert batch is not None and batch.num_samples == 4
        shape = writer.write(batch, cast("Frame", used))
        assert shape.has_masks
        rows = used.arrays["sample_rows"]["mask"][:4].tolist()
        for item, row in zip(batch.scheduled, rows, strict=True):
            assert (None if row == NO_MASK else used.masks[row]) == item.sequence.mask
        scheduler.commit(batch, [5] * 4)
        assert sequences[1].mask is None
    batch = scheduler.schedule()
    assert batch is not None
    assert [item.sequence for item in batch.scheduled] == [sequences[0], sequences[2]]
    assert not writer.write(batch, cast("Frame", used)).has_masks


def test_biases_are_named_in_their_rows_and_bans_end_with_the_least_length() -> None:
    scheduler = make_scheduler()
    writer, used = BatchWriter(LIMITS), PlainFrame()
    short = SamplingParams(max_tokens=20, stop_token_ids=(7, 8), min_tokens=3)
    biased = SamplingParams(max_tokens=20, logit_bias={4: 1.5})
    for number, params in enumerate((SamplingParams(max_tokens=20), short, biased)):
        scheduler.add(Sequence(str(number), (1, 2, 3), params, seed=number))
    in_flight = []
    for step in range(6):
        batch = scheduler.schedule()
        assert batch is not None and batch.num_samples == 3
        assert writer.write(batch, cast("Frame", used)).has_biases
        rows = used.arrays["sample_rows"]["biases"][:3].tolist()
        has_bans = step < 3  # the one before it is still in flight
        assert rows == [NO_BIASES, ROW_BIASES if has_bans else NO_BIASES, 2 * ROW_BIASES]
        assert used.biases[1] == (short, {7, 8})
        assert used.biases[2] == (biased, set())
        in_flight.append(batch)
        if step:
            scheduler.commit(in_flight[step - 1], [5] * 3)


def test_each_group_has_prefill_tiles_of_its_own_size() -> None:
    scheduler, frame = make_scheduler(), PlainFrame()
    for number, length in enumerate((11, 1, 8)):
        scheduler.add(Sequence(str(number), tuple(range(length)), SamplingParams(max_tokens=4), seed=0))
    batch = scheduler.schedule()
    assert batch is not None
    parts = AttentionWriter(BLOCK_SIZE, GROUPS).write(batch, cast("AttentionArguments", frame), 32)
    assert parts.has_prefill and parts.has_decode
    assert frame.grids == [((1, 1, 1), (3, 1, 1)), ((1, 1, 1), (5, 1, 1))]
    first, second = frame.arrays["prefill_tiles"]
    assert first[:3].tolist() == [[0, 0], [0, 8], [2, 0]]
    assert second[:5].tolist() == [[0, 0], [0, 5], [0, 10], [2, 0], [2, 5]]
