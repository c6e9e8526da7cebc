"""What a step takes in each of three ways: attention on the GPU, on the NPU after it, or halves that alternate. Pure.

GPU and NPU of a chip have one memory: what the NPU reads is missing to the GPU, halves read the weights twice, and
neither is faster than that memory. Its controller begins the tasks of all its cores one after the other, while these
read and compute, and a layer of many tasks is several runs. Left out, in the NPU's favour, are what the host adds
(submissions, copies), runs that are cut by their time, and blocks that do not lie in rows. An NPU's measured rate of
bytes has a run's beginning and its tasks in it, which count once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.hybrid.batch_split import LEAST_SPLIT
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, CORES_PER_TEAM
from unicorn_async.npu.pace import FEW_TASKS, num_tasks_of
from unicorn_async.scheduler.block_pool import NeighbourPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.hybrid.figures import GpuFigures, NpuFigures
    from unicorn_async.hybrid.step_class import StepClass
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.npu.work import AttentionHeads

_KV_BYTES = 2  # of an element of the cache, f16 or bf16


class Way(Enum):
    """Where a step's attention runs."""

    GPU = "gpu"
    WHOLE = "npu, whole steps"
    HALVES = "gpu and npu, halves that alternate"


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes and elements that each step reads, and those of experts, of which a token takes the share."""

    nbytes: int
    elements: int
    expert_nbytes: int = 0
    expert_elements: int = 0
    expert_share: float = 1.0


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step moves and computes; the NPU reads keys and values again for each group of rows, and pads rows."""

    weight_bytes: float
    multiply_adds: float
    kv_bytes: float
    attention_multiply_adds: float
    npu_bytes: float
    npu_multiply_adds: float
    npu_share: float  # of the NPU's teams of cores that have something to do
    num_layers: int
    num_tasks: int  # of the NPU's controller
    num_runs: int
    can_split: bool

    @classmethod
    def of(
        cls, model: ModelSpec, weights: Weights, heads: AttentionHeads, step: StepClass, tasks_per_run: int = FEW_TASKS
    ) -> StepWork:
        """Count the work of a step of its class, with so many tasks of the controller in a run."""
        experts = min(1.0, weights.expert_share * step.tokens)
        seen = [min(step.keys, window or step.keys) for window in model.layer_windows if window is not None]
        keys = sum(seen)
        per_sequence = -(-step.tokens // step.sequences)
        groups = -(-per_sequence // heads.queries_per_item)
        tile = heads.layout.chip.tile_n * CORES_PER_TEAM  # strips of rows go round a team's cores
        rows = step.sequences * -(-per_sequence * heads.group // tile) * tile
        columns = 2 * heads.num_kv_heads * heads.layout.head_dim  # of keys and of values
        kv_bytes = float(_KV_BYTES * step.sequences * keys * columns)
        items = step.sequences * groups * heads.num_kv_heads
        tasks = [items * num_tasks_of(_row_bytes(heads, count)) for count in seen]
        return cls(
            weight_bytes=weights.nbytes + experts * weights.expert_nbytes,
            multiply_adds=step.tokens * (weights.elements + weights.expert_share * weights.expert_elements),
            kv_bytes=kv_bytes,
            attention_multiply_adds=float(step.tokens * heads.group * keys * columns),
            npu_bytes=kv_bytes * groups,
            npu_multiply_adds=float(rows * keys * columns),
            npu_share=min(1.0, items / heads.layout.chip.num_teams),
            num_layers=model.num_layers,
            num_tasks=sum(tasks),
            num_runs=sum(-(-count // tasks_per_run) for count in tasks),
            can_split=step.sequences > 1 or step.tokens >= LEAST_SPLIT,
        )


def _row_bytes(heads: AttentionHeads, num_keys: int) -> list[int]:
    """Return what an item reads of keys and values in each row of neighbouring blocks."""
    chunks, per_row = -(-num_keys // heads.layout.chunk_keys), NeighbourPool.EXTENT * heads.chunks_per_block
    return [CORE_BUFFER_BYTES * min(per_row, chunks - first) for first in range(0, chunks, per_row)]


class Corner(NamedTuple):
    """One choice of a number for each figure."""

    gpu_bytes_per_s: float
    gpu_multiply_adds_per_s: float
    npu_bytes_per_s: float
    npu_multiply_adds_per_s: float
    dispatch_s: float
    task_s: float


def corners(gpu: GpuFigures, npu: NpuFigures) -> Iterator[Corner]:
    """Return all combinations of the figures' ends: whatever is right lies between them."""
    for numbers in product(*({figure.low, figure.high} for figure in (*gpu.all(), *npu.all()))):
        yield Corner(*numbers)


def way_seconds(work: StepWork, at: Corner, measured_gpu_s: float | None = None) -> dict[Way, float]:
    """Return what a step takes in each way that there is for it.

    Where the GPU's own time is `measured`, all but the attention is what that leaves.
    """
    weights_s = work.weight_bytes / at.gpu_bytes_per_s
    near_s = max(weights_s, work.multiply_adds / at.gpu_multiply_adds_per_s)
    gpu_s = max(work.kv_bytes / at.gpu_bytes_per_s, work.attention_multiply_adds / at.gpu_multiply_adds_per_s)
    if measured_gpu_s is not None:
        near_s = max(0.0, measured_gpu_s - gpu_s)
        gpu_s = measured_gpu_s - near_s
    computing_s = work.npu_multiply_adds / (at.npu_multiply_adds_per_s * work.npu_share)
    far_s = max(work.npu_bytes / at.npu_bytes_per_s, computing_s, work.num_tasks * at.task_s)
    ways = {Way.GPU: near_s + gpu_s, Way.WHOLE: near_s + far_s + work.num_runs * at.dispatch_s}
    if work.can_split:
        moved_s = (2 * work.weight_bytes + work.npu_bytes) / at.gpu_bytes_per_s
        dispatches_s = max(2 * work.num_layers, work.num_runs) * at.dispatch_s
        ways[Way.HALVES] = max(near_s, 2 * weights_s, far_s + dispatches_s, moved_s)
    return ways
