"""Whether a load stages in the GPU's memory, on made-up devices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.gpu.made_up import DISCRETE, GIB, NVIDIA_REBAR, RADV_780M, SOFTWARE
from unicorn_async.config import EngineConfig
from unicorn_async.gpu.budget import HeapKind, MemoryBudget
from unicorn_async.memory.plan import MemoryPlan
from unicorn_async.memory.staging import stages_in_vram
from unicorn_async.memory.states import StatePlan
from unicorn_async.weights.placement import Claim, MemoryGroup, Placement, PlannedBlock

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.kv_plan import KVPlan

STAGING = 256 << 20


def near(info: DeviceInfo, planned: int, *, mapped: bool = True, step_bytes: int = 0, **options: int) -> bool:
    """What is decided where so many bytes of VRAM are planned, and kept free for a load's steps."""
    memory = SimpleNamespace(expects_mappable=lambda heap: mapped and heap is HeapKind.VRAM)
    device = SimpleNamespace(info=info, memory=memory, heaps_with_left=lambda: info.heaps)
    block = PlannedBlock(HeapKind.VRAM, (Claim("all", planned, MemoryGroup.FFN, 0),))
    placement = Placement(MemoryBudget(GIB, 0, GIB), (block,))
    states = StatePlan(num_seqs=32, num_copies=0, nbytes=0)
    plan = MemoryPlan(cast("KVPlan", None), placement, STAGING, 2, step_bytes, states)
    return stages_in_vram(cast("Device", device), plan, replace(EngineConfig(), **options))


def free_vram(info: DeviceInfo) -> int:
    return max(heap.available_bytes for heap in info.heaps if heap.device_local)


def test_a_gpu_whose_memory_is_mapped_is_staged_in_while_there_is_room_to_spare() -> None:
    free = free_vram(NVIDIA_REBAR)
    assert near(NVIDIA_REBAR, free - 2 * STAGING)
    assert not near(NVIDIA_REBAR, free - 2 * STAGING + 256)
    assert near(NVIDIA_REBAR, free - 2 * STAGING - GIB, step_bytes=GIB)
    assert not near(NVIDIA_REBAR, free - 2 * STAGING - GIB, step_bytes=GIB + 256)


def test_what_another_engine_has_left_is_room() -> None:
    heaps = tuple(replace(heap, used=heap.budget) for heap in NVIDIA_REBAR.heaps)
    full = replace(NVIDIA_REBAR, heaps=heaps)
    assert not near(full, GIB)
    left = replace(full, heaps=tuple(replace(heap, left=GIB + 2 * STAGING) for heap in heaps))
    assert near(left, GIB)
    assert not near(left, GIB + 256)


def test_a_limit_of_the_users_counts() -> None:
    assert near(NVIDIA_REBAR, GIB, vram_bytes=GIB + STAGING)
    assert not near(NVIDIA_REBAR, GIB, vram_bytes=GIB + STAGING - 1)


def test_a_gpu_that_is_mapped_in_parts_or_not_at_all_is_staged_for_in_the_hosts_memory() -> None:
    assert not near(DISCRETE, GIB, mapped=False)


@pytest.mark.parametrize("info", [RADV_780M, SOFTWARE])
def test_where_gpu_and_host_share_their_memory_there_is_nothing_nearer(info: DeviceInfo) -> None:
    assert not near(info, GIB)
