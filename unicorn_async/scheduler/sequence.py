"""One request's state, from its arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.scheduler.request import FinishReason

if TYPE_CHECKING:
    from unicorn_async.pooling import Embedded
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.scheduler.block_changes import Remembered
    from unicorn_async.scheduler.proposer import Proposer

_NONE: frozenset[int] = frozenset()
PENDING = -1  # a token that the GPU has sampled, or will, and the host has not seen


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's state; the caller gives the first block of fields, the scheduler keeps the rest.

    A position is the index of a token in prompt and output together. A request for logits (`want_logits`), or for an
    embedding (`embedded`), has every position of its prompt computed and samples nothing.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    arrival: int = -1  # order of arrival, given by `Scheduler.add`
    want_logits: bool = False
    embedded: Embedded | None = None
    cache_salt: str = ""  # blocks are shared among sequences with the same one
    client: str = ""  # clients take turns where sequences wait
    prediction_ids: tuple[int, ...] = ()  # of the answer, by who asks: proposed from before anything else
    mask: bytes | None = None  # with a grammar, a bit for each token that may come next; None until that is known
    foreseen: tuple[tuple[int, bytes], ...] = ()  # tokens that may come then, each with the mask behind it

    end_token_ids: frozenset[int] = frozenset()  # that end its answer, given by `Scheduler.add`
    output_ids: list[int] = field(default_factory=list)  # tokens that the host has seen
    length: int = field(init=False)  # tokens of prompt and output, with those that steps in flight will sample
    num_computed: int = 0  # positions computed, as far as the host has seen
    num_scheduled: int = 0  # positions computed or in flight
    num_in_flight: int = 0  # its parts of steps in flight
    num_pending: int = 0  # tokens that steps in flight will sample, whatever becomes of proposals
    num_proposed: int = 0  # proposed tokens in a step in flight: how many are right decides where the next one begins
    proposer: Proposer | None = None  # made when something may be proposed for the first time
    draft_count: int = 0  # tokens to be drafted to it before it decodes on; 0 = none
    drafted: tuple[int, ...] = ()  # what a draft model says comes behind its newest token
    num_predicting: int = 0  # its parts of steps in flight behind which the model itself predicts tokens
    num_foretold: int = 0  # how many these are, behind the latest of them
    num_drafted: int = 0  # of the latest proposed tokens, the first ones that were a draft model's
    is_draft_cut: bool = False  # what was drafted behind these may not come, by a grammar
    is_draft_missed: bool = False  # one of them was wrong
    is_predicted: bool = False  # the latest proposed tokens were from the prediction
    num_predicted_right: int = 0  # of the prediction's tokens, those proposed and right
    num_predicted_wrong: int = 0  # those computed in vain
    is_token_elsewhere: bool = False  # its newest token is not the last one in its state
    num_uncounted: int = 0  # its newest tokens, which came behind proposed ones: the sampler has not counted them yet
    place: int = -1  # order of its first admission among all, given by `WaitingQueue`
    last_turn: int = 0  # number of its latest turn among all: a part of its prompt, or a token where not all had one
    num_given: int = 0  # length at admission; tokens from here on were sampled into the present state
    max_length: int = 0  # prompt and output may have so many tokens together
    state_index: int = -1  # row of the sequence's state on the GPU; -1 = none
    spare_row: int = -1  # where its state of fixed size is, if not in that row
    block_tables: list[list[int]] = field(default_factory=list)  # per group: logical block -> block, -1 = freed
    first_blocks: list[int] = field(default_factory=list)  # per group: logical blocks before it are freed
    num_covered: int = 0  # positions that each of the tables has room for
    block_keys: list[bytes] = field(default_factory=list)  # of its first blocks, by their tokens and all before them
    block_numbers: dict[bytes, int] = field(default_factory=dict)  # of these keys, while it waits for a place
    block_marks: dict[object, Remembered] = field(default_factory=dict)  # of them meanwhile, by who asks
    awaited_key: bytes | None = None  # while it waits for a place: the last of what a running sequence is to have first
    num_known: int = 0  # of its first blocks, as far as they are known by their keys
    num_found: int = 0  # positions that it found computed when it got its state
    num_prompt_found: int | None = None  # those of its prompt at its first admission, None before that
    num_countable: int | None = None  # of its prompt's first tokens, those that a step can count and not compute
    num_restores: int = 0  # how often blocks of its beginning were to be brought back to the device
    is_restoring: bool = False  # it waits for these
    trim_start: int = 0  # while `num_computed` is below it, no more blocks can be freed
    preempted: bool = False  # lost its place, or loses it when its steps in flight are committed
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.length = len(self.prompt_ids) + len(self.output_ids)

    @property
    def samples(self) -> bool:
        """Whether it has tokens behind its prompt."""
        return not self.want_logits and self.embedded is None

    @property
    def num_seen(self) -> int:
        """Tokens of prompt and output that the host has seen."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_remaining(self) -> int:
        """Positions that can be scheduled now; 0 when the last token is already on its way."""
        if self.length >= self.max_length and self.samples:
            return 0
        return self.length - self.num_scheduled

    @property
    def awaits_mask(self) -> bool:
        """Whether steps go on without it: the host has yet to see its last token, and to say which ones may follow."""
        return self.sampling.grammar is not None and (self.num_pending > 0 or self.mask is None)

    def mask_behind(self, proposal: int) -> bytes | None:
        """Return the mask behind its newest token, or behind so many that are proposed to follow that one."""
        return self.foreseen[proposal - 1][1] if proposal and self.foreseen else self.mask

    @property
    def allowed_drafted(self) -> tuple[int, ...]:
        """What was drafted to it and may come: with a grammar that is as far as the masks are foreseen."""
        if self.sampling.grammar is None:
            return self.drafted
        tokens = zip(self.drafted, self.foreseen, strict=False)
        return self.drafted[
            : next((at for at, (one, (other, _)) in enumerate(tokens) if one != other), len(self.foreseen))
        ]

    @property
    def awaits_draft(self) -> bool:
        """Whether steps go on without it until a draft model has said what comes behind its newest token."""
        return self.draft_count > 0 and not self.drafted

    @property
    def is_decoding(self) -> bool:
        """Whether all that the sequence was admitted with is scheduled: the next step takes one sampled token."""
        return self.num_scheduled >= self.num_given and self.state_index >= 0

    def confine(self, room: int) -> bool:
        """End within `room` computed positions; returns whether the sequence can, by a token that is still to come.

        A last token's own position is never computed: who has as many tokens as there are positions gets one more.
        """
        least = self.length + (self.samples and self.num_pending == 0)
        if least - self.samples > room:
            return False
        self.max_length = min(self.max_length, max(least, room))
        return True

    def token_ids(self, start: int, count: int) -> tuple[int, ...]:
        """Return `count` tokens from position `start` on; PENDING for those that the host has not seen."""
        stop, num_prompt = start + count, len(self.prompt_ids)
        if start >= num_prompt + len(self.output_ids):
            return (PENDING,) * count
        known = self.prompt_ids[start:stop]
        if stop > num_prompt:
            known += tuple(self.output_ids[max(start - num_prompt, 0) : stop - num_prompt])
        return known + (PENDING,) * (count - len(known))

    def banned_at(self, position: int) -> frozenset[int]:
        """Return the tokens that must not come at a position, since the answer would be shorter than it has to be."""
        is_short = position < len(self.prompt_ids) + self.sampling.min_tokens
        return self.end_token_ids if is_short else _NONE

    def accept_proposal(self, start: int, token_id: int) -> bool:
        """Take it that a proposed token at a position is computed; returns whether it is the sequence's newest one."""
        if self.finish_reason is not None or self.num_seen != start + 1 or self.output_ids[-1] != token_id:
            return False
        self.num_computed = self.num_scheduled = start + 1
        self.length += 1
        return True

    def accept(self, token_id: int) -> None:
        """Append a token that the GPU has sampled, and see whether it ends the sequence."""
        self.output_ids.append(token_id)
        self.mask = None
        self.drafted = ()
        if token_id in self.end_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.prompt_ids) + len(self.output_ids) >= self.max_length:
            self.finish_reason = FinishReason.LENGTH
