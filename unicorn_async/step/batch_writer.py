"""Writes a batch into a frame's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.ops.runs import LAST_OF_RUN
from unicorn_async.ops.sample_rows import (
    COUNTS,
    LOOKS,
    NO_BIASES,
    NO_MASK,
    NO_STATE,
    OUTPUT_MARK,
    sampling_path,
    write_row,
)
from unicorn_async.scheduler.sequence import PENDING
from unicorn_async.step.bias_rows import ROW_BIASES
from unicorn_async.step.buckets import bucket_for, bucket_sizes
from unicorn_async.step.frame import StepShape, WrittenDecodes
from unicorn_async.step.further_tokens import drafting_bucket
from unicorn_async.step.next_tokens import write_next_tokens
from unicorn_async.step.pooled_rows import pooled_parts

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch, ScheduledSequence
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_copies import KeptState
    from unicorn_async.step.frame import Frame, FrameLimits


class BatchWriter:
    """Fills frames; it keeps no state of a batch."""

    def __init__(self, limits: FrameLimits) -> None:
        self._has_runs = limits.has_runs
        self._predicts = limits.predicts
        self.token_buckets = bucket_sizes(limits.tokens)
        self.sequence_buckets = bucket_sizes(limits.sequences)
        self.logit_buckets = bucket_sizes(limits.logit_rows)

    def write(self, batch: Batch, frame: Frame) -> StepShape:
        """Write all arrays, or what of them the frame does not hold yet, and return the step's shape."""
        if not batch.feeds_itself or batch.kept or batch.given:
            frame.decodes = None
            return self._write_all(batch, frame)
        sequences = [item.sequence for item in batch.scheduled]
        state_indices = [sequence.state_index for sequence in sequences]
        known = frame.decodes
        if (
            known is not None
            and known.sequences == sequences
            and known.state_indices == state_indices
            and (known.shape.has_predictions, known.shape.num_drafts) == self._predictions(batch)
        ):
            self._write_positions(batch, frame)
            if known.shape.has_masks:
                self._write_masks(batch, frame)
            if known.shape.has_biases:
                self._write_biases(batch, frame)
            return known.shape
        shape = self._write_all(batch, frame)
        frame.decodes = WrittenDecodes(sequences, state_indices, shape)
        return shape

    def _write_positions(self, batch: Batch, frame: Frame) -> None:
        arrays, count = frame.arguments.arrays, len(batch.scheduled)
        positions = np.array([item.start for item in batch.scheduled], np.uint32)
        arrays["positions"][:count] = positions
        arrays["sample_rows"]["position"][:count] = positions + 1
        if self._predictions(batch)[0]:
            arrays["next_rows"]["position"][:count] = positions + 2

    def _write_all(self, batch: Batch, frame: Frame) -> StepShape:
        tokens = self._write_tokens(batch, frame)
        if self._has_runs:
            self._write_runs(batch, frame, tokens)
        num_rows, num_samples = self._write_rows(batch, frame)
        has_predictions, num_drafts = self._predictions(batch)
        shape = StepShape(
            tokens=tokens,
            logit_rows=bucket_for(num_rows, self.logit_buckets) if num_rows else 0,
            samples=bucket_for(num_samples, self.sequence_buckets) if num_samples else 0,
            path=sampling_path(item.sequence.sampling for item in batch.scheduled if item.samples),
            has_counts=self._write_counts(batch, frame),
            has_found=any(map(_counts_found, batch.scheduled)),
            has_masks=self._write_masks(batch, frame),
            has_biases=self._write_biases(batch, frame),
            has_pools=self._write_pools(batch, frame),
            has_predictions=has_predictions,
            num_drafts=num_drafts,
            num_drafting=drafting_bucket(batch) if num_drafts > 1 else 0,
        )
        if shape.has_predictions:
            write_next_tokens(batch, frame, num_tokens=tokens, num_rows=shape.samples)
        return shape

    def _predictions(self, batch: Batch) -> tuple[bool, int]:
        """Whether a batch goes through the layer that predicts, and how many tokens are chosen by that."""
        return self._predicts and batch.predicts, batch.num_drafts if self._predicts else 0

    def _write_tokens(self, batch: Batch, frame: Frame) -> int:
        """Write what there is one of for each token; returns the bucket of their number."""
        arrays = frame.arguments.arrays
        token_ids: list[int] = []
        positions: list[int] = []
        for item in batch.scheduled:
            sequence, start, count, ids, _, is_decode, is_given, *_ = item
            if is_decode:  # its token is in its state, whether the host has seen it or not, unless it is given
                token_ids.append(ids[0] if is_given else -1 - sequence.state_index)
                positions.append(start)
                continue
            token_ids += ids if PENDING not in ids else _fed_back(item)
            positions += range(start, start + count)
        tokens = bucket_for(len(token_ids), self.token_buckets)
        padding = tokens - len(token_ids)
        arrays["token_ids"][:tokens] = token_ids + [0] * padding
        arrays["positions"][:tokens] = positions + [0] * padding
        return tokens

    def _write_runs(self, batch: Batch, frame: Frame, num_tokens: int) -> None:
        """Write where each token stands among those of its sequence; the batch's are padded to `num_tokens`."""
        runs, row = frame.arguments.arrays["runs"], 0
        given = dict(batch.given)
        kept: dict[Sequence, list[KeptState]] = {}
        for state in batch.kept:
            kept.setdefault(state.sequence, []).append(state)
        before = batch.scheduled[0]
        for item in batch.scheduled:
            stop = row + item.num_tokens
            runs["source"][row:stop] = given.get(item.sequence, item.sequence.state_index)
            runs["kept"][row:stop] = NO_STATE
            for state in kept.get(item.sequence, ()):
                runs["kept"][row + state.position - item.start - 1] = state.copy
            runs["state_index"][row:stop] = item.sequence.state_index
            runs["offset"][row:stop] = np.arange(item.num_tokens)
            runs["offset"][stop - 1] |= LAST_OF_RUN
            if item.state_row >= 0:
                runs["state_index"][row - item.proposal : stop] = item.state_row
            if item.proposal:  # its run began with the sequence's newest token
                runs["kept"][row - 1] = before.state_row if before.state_row >= 0 else NO_STATE
                runs["offset"][row - 1 : stop] = item.proposal - 1, item.proposal | LAST_OF_RUN
            row, before = stop, item
        runs["state_index"][row:num_tokens] = NO_STATE

    def _write_rows(self, batch: Batch, frame: Frame) -> tuple[int, int]:
        """Write which rows need logits, those that are sampled first; returns the counts of all and of those."""
        arrays, known = frame.arguments.arrays, frame.sampled_rows
        sampled: list[int] = []
        positions: list[int] = []
        evaluated: list[int] = []
        row = 0
        for item in batch.scheduled:
            sequence, row = item.sequence, row + item.num_tokens
            if item.samples:
                index, position = len(sampled), item.start + item.num_tokens
                wanted = (sequence.sampling, sequence.state_index, sequence.seed)
                if index == len(known) or known[index] != wanted:
                    params, state_index, seed = wanted
                    cell = arrays["sample_rows"][index : index + 1]
                    write_row(cell, params, state_index=state_index, seed=seed, position=position)
                    known[index : index + 1] = [wanted]
                sampled.append(row - 1)
                positions.append(position)
            elif sequence.want_logits:
                evaluated += range(row - item.num_tokens, row)
        count = len(sampled) + len(evaluated)
        if count:
            arrays["logit_rows"][:count] = sampled + evaluated
            arrays["logit_rows"][count : bucket_for(count, self.logit_buckets)] = 0
        if sampled:
            stop = bucket_for(len(sampled), self.sequence_buckets)
            arrays["sample_rows"]["position"][: len(sampled)] = positions
            arrays["sample_rows"]["state_index"][len(sampled) : stop] = NO_STATE
            del known[len(sampled) :]
        return count, len(sampled)

    def _write_masks(self, batch: Batch, frame: Frame) -> bool:
        """Write which tokens may come next in sequences with a grammar; returns whether there is one."""
        masks = [item.sequence.mask_behind(item.proposal) for item in batch.scheduled if item.samples]
        if not any(masks):
            return False
        for index, mask in enumerate(masks):
            if mask is not None:
                frame.masks.write(index, mask)
        indices = [NO_MASK if mask is None else index for index, mask in enumerate(masks)]
        frame.arguments.arrays["sample_rows"]["mask"][: len(masks)] = indices
        return True

    def _write_biases(self, batch: Batch, frame: Frame) -> bool:
        """Write the biases of single tokens, and those that must not come yet; returns whether there are some."""
        if not any(item.sequence.sampling.has_biases for item in batch.scheduled):
            return False
        firsts: list[int] = []
        for item in batch.scheduled:
            if item.samples:
                sampling, banned = item.sequence.sampling, item.sequence.banned_at(item.start + item.num_tokens)
                index, has_some = len(firsts), bool(sampling.logit_bias or banned)
                if has_some:
                    frame.biases.write(index, sampling, banned)
                firsts.append(index * ROW_BIASES if has_some else NO_BIASES)
        frame.arguments.arrays["sample_rows"]["biases"][: len(firsts)] = firsts
        return any(first != NO_BIASES for first in firsts)

    def _write_pools(self, batch: Batch, frame: Frame) -> bool:
        """Write which rows are added to embeddings; returns whether there are some."""
        cells = [part.cell for part in pooled_parts(batch)]
        if cells:
            pools = frame.arguments.arrays["pools"]
            pools[: len(cells)] = cells
            pools["state_index"][len(cells) :] = NO_STATE
        return bool(cells)

    def _write_counts(self, batch: Batch, frame: Frame) -> bool:
        """Write the tokens that sequences with penalties have to count; returns whether there is such a sequence."""
        if not any(item.sequence.sampling.has_penalties for item in batch.scheduled):
            return False
        resets, marks = frame.arguments.arrays["resets"], frame.arguments.arrays["marks"]
        resets[:] = NO_STATE
        marks["state_index"] = NO_STATE
        num_marks = 0
        for index, item in enumerate(batch.scheduled):
            sequence = item.sequence
            if not sequence.sampling.has_penalties:
                continue
            if item.resets:
                resets[index] = sequence.state_index
            if _counts_found(item):
                found = np.unique(sequence.prompt_ids[: sequence.num_found])
                written = marks[num_marks : num_marks + len(found)]
                written["state_index"], written["token"] = sequence.state_index, found
                num_marks += len(found)
            start, token_ids = item.start, item.token_ids
            if item.is_decode:  # its token was counted when it was sampled, unless that was behind a proposed one
                start += 1 - item.num_uncounted
                token_ids = sequence.token_ids(start, item.num_uncounted)
            for position, token in enumerate(token_ids, start):
                is_output = position >= len(sequence.prompt_ids)
                marks[num_marks] = (sequence.state_index, token | (OUTPUT_MARK if is_output else 0))
                num_marks += 1
        self._write_proposed(batch, frame)
        return True

    def _write_proposed(self, batch: Batch, frame: Frame) -> None:
        """Write which tokens are proposed before each row's own choice, and which choices are not counted yet."""
        sampled = [item for item in batch.scheduled if item.samples]
        rows = frame.arguments.arrays["sample_rows"][: len(sampled)]
        has_penalties = [item.sequence.sampling.has_penalties for item in sampled]
        rows["penalised"] = np.where(has_penalties, [LOOKS if item.proposal else COUNTS for item in sampled], 0)
        rows["proposal"] = [item.proposal for item in sampled]
        rows["token"] = [item.token_ids[-1] if item.proposal else 0 for item in sampled]


def _counts_found(item: ScheduledSequence) -> bool:
    """Whether a part is the first one behind tokens that its repetition penalty goes by and no step has computed."""
    return item.sequence.sampling.repetition_penalty != 1.0 and item.resets and item.start > 0


def _fed_back(item: ScheduledSequence) -> list[int]:
    """Token ids for the device; where it is to take the token that it has sampled last, where its state has it."""
    fed_back = -1 - item.sequence.state_index
    return [fed_back if token == PENDING else token for token in item.token_ids]
