"""Choosing tokens on the GPU: arguments of the sampling kernels, and the dispatches in their order.

Two paths give the same tokens. The greedy one is an argmax in two dispatches; the full one serves every request, with
penalties, temperature, top-k, top-p, min-p and log-probabilities, row by row as the rows' parameters say.

Ties go to the lowest token id. Tokens with equal logits pass top-k and top-p together, so more than k may stay in. A
NaN or -inf logit counts as the smallest finite number, +inf as the largest. Top-p takes the fewest tokens that hold the
wanted share of what top-k left. A choice is the argmax of logits with Gumbel noise from a counter-based generator: it
depends on seed, position and the row's logits alone, not on the batch or the device.

Biases of single tokens come before all of that: they change the row's logits where these lie, so that for everything
else, log-probabilities included, the model has computed these. A bias of -100 bans its token, which then has the
smallest finite logit, and comes where no other may.

Where a row has a mask, the tokens that it forbids are passed over in all of that. So are they in log-probabilities,
which are of the distribution over the tokens that may come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.tensor import Tensor

CHUNK = 2048  # logits that one workgroup looks at

_BOUNDS_BYTES = 16
_PART_BYTES = 32
_MARK_LANES = 64


class SamplingPath(Enum):
    """Which kernels a step needs; the value names the last of them."""

    GREEDY = "sample_pick"
    FULL = "sample_finish"


def num_chunks(vocab_size: int) -> int:
    """Workgroups that share one row of logits."""
    return -(-vocab_size // CHUNK)


def scratch_bytes(num_rows: int, vocab_size: int) -> int:
    """Device memory that either path needs beside its arguments, in bytes; its contents need not live on."""
    return num_rows * (_BOUNDS_BYTES + num_chunks(vocab_size) * _PART_BYTES)


def counts_bytes(num_states: int, vocab_size: int) -> int:
    """Size of the table of what each state's sequence has seen, (states, vocab) u32, in bytes."""
    return num_states * vocab_size * 4


@dataclass(frozen=True, slots=True)
class SampleArguments:
    """Where a step's sampling finds its data; all addresses are device addresses, borrowed, aligned to 4 bytes.

    The rows may lie in host-visible memory that the host rewrites before each replay, and the results in host-visible
    memory that it reads after the step. Padded rows have the state index NO_STATE: they are skipped, their results are
    not written.
    """

    logits: Tensor  # (rows, vocab) f32, the model's own
    rows: int  # (rows) SAMPLE_ROW
    scratch: int  # scratch_bytes(rows, vocab)
    last_token: int  # (states) u32
    results: int  # (rows) SAMPLE_RESULT
    counts: int = 0  # (states, vocab) u32, counts_bytes(num_states, vocab_size); 0 = no row has penalties
    masks: int = 0  # (masks, mask_words(vocab)) u32, each with a bit set at least; 0 = no row has one
    biases: int = 0  # SAMPLE_BIAS, those of each row behind their number; 0 = no row has some

    def __post_init__(self) -> None:
        if len(self.logits.shape) != 2 or self.logits.dtype is not DType.F32 or 0 in self.logits.shape:
            raise ConfigError(f"logits: expected (rows, vocab) F32, got {self.logits.shape} {self.logits.dtype.name}")

    @property
    def num_rows(self) -> int:
        """Rows to sample, padding included."""
        return self.logits.shape[0]

    @property
    def vocab_size(self) -> int:
        """Logits of one row."""
        return self.logits.shape[1]

    @property
    def num_chunks(self) -> int:
        """Workgroups that share one row."""
        return num_chunks(self.vocab_size)

    @property
    def constants(self) -> dict[str, int]:
        """Constants of the kernels that share a row by chunks."""
        return {"CHUNK": CHUNK, "MASKED": int(self.masks != 0)}

    @property
    def row_bounds(self) -> int:
        """Address of the rows' bounds, behind the chunks' parts in the scratch memory."""
        return self.scratch + self.num_rows * self.num_chunks * _PART_BYTES


def _threshold_constants(info: DeviceInfo, args: SampleArguments) -> dict[str, int]:
    """One workgroup has a whole row: a GPU needs many loads under way, a software device few and cheap barriers."""
    masked = int(args.masks != 0)
    if info.is_software:
        return {"LANES": 64, "UNROLL": 1, "MASKED": masked}
    lanes = min(1024, info.max_workgroup_invocations, 32 * info.subgroup_size)  # some drivers take 32 subgroups
    return {"LANES": lanes, "UNROLL": 8, "MASKED": masked}


def record_sampling(
    recorder: Recorder, kernels: Kernels, info: DeviceInfo, path: SamplingPath, args: SampleArguments
) -> None:
    """Record the choice of a token for every row by a path, behind its biases if any row has some.

    Barriers before and after are the caller's.
    """
    if args.biases:
        bias = kernels.get("sample_bias")
        push = bias.pack(logits=args.logits.address, rows=args.rows, biases=args.biases, vocab=args.vocab_size)
        recorder.dispatch(bias, push, args.num_rows)
        recorder.barrier()
    if path is SamplingPath.GREEDY:
        record_greedy(recorder, kernels, args)
    else:
        record_full(recorder, kernels, info, args)


def record_counts(
    recorder: Recorder,
    kernels: Kernels,
    *,
    resets: int,
    num_states: int,
    marks: int,
    num_marks: int,
    counts: int,
    vocab_size: int,
) -> None:
    """Record that counts begin anew, and then that tokens are counted; see `record_resets` and `record_marks`."""
    record_resets(recorder, kernels, state_indices=resets, num_states=num_states, counts=counts, vocab_size=vocab_size)
    recorder.barrier()
    record_marks(recorder, kernels, marks=marks, num_marks=num_marks, counts=counts, vocab_size=vocab_size)


def record_greedy(recorder: Recorder, kernels: Kernels, args: SampleArguments) -> None:
    """Record the argmax of every row: results' tokens and last_token; `logprob` and `num_top` become 0.

    Parameters of the rows other than the state index are ignored. Barriers before and after are the caller's; the one
    between the dispatches is recorded here.
    """
    argmax = kernels.get("sample_argmax", constants=args.constants)
    push = argmax.pack(
        logits=args.logits.address, rows=args.rows, parts=args.scratch, masks=args.masks, vocab=args.vocab_size
    )
    recorder.dispatch(argmax, push, args.num_chunks, args.num_rows)
    recorder.barrier()
    pick = kernels.get("sample_pick")
    push = pick.pack(
        rows=args.rows,
        parts=args.scratch,
        last_token=args.last_token,
        results=args.results,
        num_chunks=args.num_chunks,
    )
    recorder.dispatch(pick, push, args.num_rows)


def record_full(recorder: Recorder, kernels: Kernels, info: DeviceInfo, args: SampleArguments) -> None:
    """Record sampling by every row's parameters; rows with penalties count their token in `counts`.

    Barriers before and after are the caller's; those between the dispatches are recorded here. Of rows with penalties
    that have the same state index, all but the first are behind proposed tokens, which each sees beside the counts.
    """
    chunks, rows = args.num_chunks, args.num_rows
    shared = {
        "logits": args.logits.address,
        "rows": args.rows,
        "counts": args.counts,
        "parts": args.scratch,
        "masks": args.masks,
        "vocab": args.vocab_size,
        "has_counts": int(args.counts != 0),
    }
    stats = kernels.get("sample_stats", constants=args.constants)
    recorder.dispatch(stats, stats.pack(**shared), chunks, rows)
    recorder.barrier()
    shared["row_bounds"] = args.row_bounds
    threshold = kernels.get("sample_threshold", constants=_threshold_constants(info, args))
    recorder.dispatch(threshold, threshold.pack(**shared, num_chunks=chunks), rows)
    recorder.barrier()
    draw = kernels.get("sample_draw", constants=args.constants)
    recorder.dispatch(draw, draw.pack(**shared), chunks, rows)
    recorder.barrier()
    finish = kernels.get("sample_finish", constants=args.constants)
    push = finish.pack(**shared, last_token=args.last_token, results=args.results, num_chunks=chunks)
    recorder.dispatch(finish, push, rows)


def record_resets(
    recorder: Recorder, kernels: Kernels, *, state_indices: int, num_states: int, counts: int, vocab_size: int
) -> None:
    """Record that the counts of states become 0; `state_indices` is the address of (num_states) u32, or NO_STATE."""
    reset = kernels.get("sample_reset", constants={"CHUNK": CHUNK})
    push = reset.pack(state_indices=state_indices, counts=counts, vocab=vocab_size)
    recorder.dispatch(reset, push, num_chunks(vocab_size), num_states)


def record_marks(
    recorder: Recorder, kernels: Kernels, *, marks: int, num_marks: int, counts: int, vocab_size: int
) -> None:
    """Record that tokens of prompts, or of outputs that are computed again, are counted.

    `marks` is the address of (num_marks) SAMPLE_MARK; an output's token carries OUTPUT_MARK. Tokens outside of the
    vocabulary are ignored. A barrier between record_resets and this is the caller's.
    """
    count = kernels.get("sample_count")
    push = count.pack(marks=marks, counts=counts, num_marks=num_marks, vocab=vocab_size)
    recorder.dispatch(count, push, -(-num_marks // _MARK_LANES))
