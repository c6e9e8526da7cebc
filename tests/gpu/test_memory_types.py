from __future__ import annotations

import pytest

from unicorn_async.gpu.memory_types import (
    DEVICE_LOCAL,
    HOST_CACHED,
    HOST_COHERENT,
    HOST_VISIBLE,
    MemoryKind,
    rank_memory_types,
)

MAPPED = HOST_VISIBLE | HOST_COHERENT
GIB = 1 << 30


def rank(kind: MemoryKind, types: list[tuple[int, int]], heaps: list[int], *, shared: bool = False) -> tuple[int, ...]:
    return rank_memory_types(types, heaps, kind, shares_host_memory=shared)


REBAR = [(0, 1), (DEVICE_LOCAL, 0), (MAPPED, 1), (MAPPED | HOST_CACHED, 1), (DEVICE_LOCAL | MAPPED, 0)]
SMALL_BAR = [(DEVICE_LOCAL, 0), (MAPPED, 1), (MAPPED | HOST_CACHED, 1), (DEVICE_LOCAL | MAPPED, 2)]


def test_device_memory_is_mapped_where_all_of_it_can_be() -> None:
    assert rank(MemoryKind.DEVICE, REBAR, [80 * GIB, 64 * GIB]) == (4, 1)


def test_device_memory_comes_from_the_large_heap_before_the_window() -> None:
    assert rank(MemoryKind.DEVICE, SMALL_BAR, [8 * GIB, 32 * GIB, GIB // 4]) == (0, 3)


def test_frames_are_near_the_gpu() -> None:
    assert rank(MemoryKind.ARGUMENTS, REBAR, [80 * GIB, 64 * GIB])[0] == 4
    assert rank(MemoryKind.ARGUMENTS, SMALL_BAR, [8 * GIB, 32 * GIB, GIB // 4])[0] == 3


def test_staging_is_cached_host_memory() -> None:
    assert rank(MemoryKind.STAGING, REBAR, [80 * GIB, 64 * GIB])[0] == 3


def test_a_gpu_that_shares_the_hosts_memory_may_use_all_heaps() -> None:
    types = [(DEVICE_LOCAL, 0), (DEVICE_LOCAL | MAPPED, 0), (MAPPED, 1), (MAPPED | HOST_CACHED, 1)]
    assert rank(MemoryKind.DEVICE, types, [20 * GIB, 10 * GIB], shared=True) == (1, 0, 2, 3)
    assert rank(MemoryKind.DEVICE, types, [20 * GIB, 10 * GIB]) == (1, 0)


@pytest.mark.parametrize("kind", list(MemoryKind))
def test_types_with_unknown_properties_are_left_out(kind: MemoryKind) -> None:
    lazily_allocated, device_coherent = 0x10, 0x40
    types = [(DEVICE_LOCAL | MAPPED | lazily_allocated, 0), (DEVICE_LOCAL | MAPPED | device_coherent, 0)]
    assert rank(kind, types, [GIB]) == ()


def test_uncoherent_host_memory_is_left_out() -> None:
    assert rank(MemoryKind.STAGING, [(HOST_VISIBLE | HOST_CACHED, 0), (MAPPED, 0)], [GIB]) == (1,)
