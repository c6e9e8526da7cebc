"""Runs the sampling kernels on NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops import sample_rows, sampling
from unicorn_async.ops.sample_rows import NO_STATE, OUTPUT_MARK
from unicorn_async.ops.sampling import SampleArguments, SamplingPath
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.sampling_params import SamplingParams


@dataclass
class Outcome:
    results: NDArray[np.void]
    last_token: NDArray[np.uint32]
    max_keys: NDArray[np.uint32]
    thresholds: NDArray[np.uint32]
    counts: NDArray[np.uint32] | None

    @property
    def tokens(self) -> list[int]:
        return [int(token) for token in self.results["token"]]


class Sampler:
    """Runs the kernels on host-visible memory, one submission a call."""

    def __init__(self, device: Device, info: DeviceInfo | None = None) -> None:
        self._device = device
        self._info = info or device.info
        self._buffers: list[Buffer] = []

    def __call__(
        self,
        logits: NDArray[np.float32],
        params: Sequence[SamplingParams],
        *,
        path: SamplingPath = SamplingPath.FULL,
        seeds: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        state_indices: Sequence[int] | None = None,
        seen: Sequence[tuple[list[int], list[int]]] | None = None,
        allowed: Sequence[NDArray[np.bool_] | None] | None = None,
        banned: Sequence[frozenset[int]] | None = None,
        proposed: Sequence[int] = (),
    ) -> Outcome:
        """`seen` has each row's prompt and output tokens, `allowed` the tokens that may come, None = all.

        Rows have biases where `banned` is given, by their parameters and these tokens. The last rows are what follows
        the `proposed` tokens.
        """
        num_rows, vocab = logits.shape
        state_indices = state_indices or list(range(num_rows))
        seeds = seeds or [0] * num_rows
        positions = positions or [0] * num_rows
        rows = np.zeros(num_rows, sample_rows.SAMPLE_ROW)
        for i, request in enumerate(params):
            sample_rows.write_row(
                rows[i : i + 1], request, state_index=state_indices[i], seed=seeds[i], position=positions[i]
            )
        if proposed:
            first = num_rows - len(proposed)
            rows["token"][first:] = proposed
            rows["proposal"][first:] = range(1, len(proposed) + 1)
            rows["penalised"][first:] = sample_rows.LOOKS
        masks = None if allowed is None else self._put(_masks(rows, allowed, vocab))
        biases = None if banned is None else self._put(_biases(rows, params, banned))
        scratch_bytes = sampling.scratch_bytes(num_rows, vocab)
        with_counts = seen is not None
        last_token = self._put(np.full(max(num_rows, 8), 77, np.uint32))
        results = self._put(np.full(num_rows * sample_rows.SAMPLE_RESULT.itemsize, 0xEE, np.uint8))
        scratch = self._put(np.full(scratch_bytes, 0xEE, np.uint8))
        counts = self._put(np.full(num_rows * vocab, 12345, np.uint32)) if with_counts else None
        args = SampleArguments(
            Tensor(self._put(logits.astype(np.float32)).address, (num_rows, vocab), DType.F32),
            rows=self._put(rows).address,
            scratch=scratch.address,
            last_token=last_token.address,
            results=results.address,
            counts=counts.address if counts else 0,
            masks=masks.address if masks else 0,
            biases=biases.address if biases else 0,
        )
        marks = _marks(seen or [], state_indices)
        self._submit(args, path, marks)
        bounds = self._get(scratch, np.uint32)[(args.row_bounds - args.scratch) // 4 :].reshape(-1, 4)
        outcome = Outcome(
            self._get(results, np.uint8).view(sample_rows.SAMPLE_RESULT),
            self._get(last_token, np.uint32),
            bounds[:, 0],
            bounds[:, 2],
            self._get(counts, np.uint32).reshape(num_rows, vocab) if counts else None,
        )
        self.close()
        return outcome

    def close(self) -> None:
        while self._buffers:
            self._buffers.pop().close()

    def _submit(self, args: SampleArguments, path: SamplingPath, marks: NDArray[np.void]) -> None:
        kernels = self._device.kernels
        pool = CommandPool(self._device, self._device.compute)
        recorder = pool.recorder()
        if args.counts:
            state_indices = self._put(np.arange(args.num_rows, dtype=np.uint32)).address
            listed = self._put(marks).address
            target = {"counts": args.counts, "vocab_size": args.vocab_size}
            sampling.record_resets(recorder, kernels, state_indices=state_indices, num_states=args.num_rows, **target)
            recorder.barrier()
            sampling.record_marks(recorder, kernels, marks=listed, num_marks=marks.size, **target)
            recorder.barrier()
        sampling.record_sampling(recorder, kernels, self._info, path, args)
        recorder.host_barrier()
        value = self._device.compute.submit([recorder.end()])
        self._device.compute.timeline.wait(value, 120.0)
        pool.close()

    def _put(self, array: NDArray[np.generic]) -> Buffer:
        buffer = self._device.memory.allocate(max(array.nbytes, 4), MemoryKind.ARGUMENTS, name="sampling test")
        assert buffer.mapped is not None
        buffer.mapped[: array.nbytes] = array.tobytes()
        self._buffers.append(buffer)
        return buffer

    def _get(self, buffer: Buffer, dtype: type[np.generic]) -> NDArray[np.generic]:
        assert buffer.mapped is not None
        return np.frombuffer(bytes(buffer.mapped[: buffer.nbytes]), dtype)


def _marks(seen: Sequence[tuple[list[int], list[int]]], state_indices: Sequence[int]) -> NDArray[np.void]:
    listed = []
    for state_index, (prompt, output) in zip(state_indices, seen, strict=False):
        listed += [(state_index, token) for token in prompt] + [(state_index, token | OUTPUT_MARK) for token in output]
    return np.array([*listed, (NO_STATE, 0)], sample_rows.SAMPLE_MARK)


def _biases(
    rows: NDArray[np.void], params: Sequence[SamplingParams], banned: Sequence[frozenset[int]]
) -> NDArray[np.void]:
    """The biases of rows, each as long as it is, in reverse order; rows without any have none to read."""
    listed, length = [], 0
    for row in reversed(range(len(rows))):
        if params[row].logit_bias or banned[row]:
            listed.append(sample_rows.sample_biases(params[row], banned[row]))
            rows["biases"][row] = length
            length += len(listed[-1])
    return np.concatenate(listed)


def _masks(rows: NDArray[np.void], allowed: Sequence[NDArray[np.bool_] | None], vocab: int) -> NDArray[np.uint32]:
    """Masks in reverse order, so that none has its row's number; each is written into its row. Spare bits are set."""
    words = sample_rows.mask_words(vocab)
    masks = np.full((len(allowed), words), 0xFFFFFFFF, np.uint32)
    for row, tokens in enumerate(allowed):
        if tokens is None:
            continue
        index = len(allowed) - 1 - row
        bits = np.ones(words * 32, np.uint8)
        bits[:vocab] = tokens
        masks[index] = np.packbits(bits, bitorder="little").view("<u4")
        rows["mask"][row] = index
    return masks
