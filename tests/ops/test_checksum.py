"""Checksums against a NumPy reference, and what they notice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.checksum import Checksum
from unicorn_async.ops.host_checksum import HostChecksum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .arrays import Arrays

START = np.array(
    [[0x9E3779B9, 0x7F4A7C15, 0xF39CC060, 0x5CEDC834], [0x1082276B, 0xF3A27251, 0xF86C6A11, 0xD0C18E95]], np.uint32
)
STEP = np.array(
    [[0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1], [0xCC9E2D51, 0x1B873593, 0xE6546B65, 0x38B34AE5]], np.uint32
)
PAIRS = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
SIZES = [2, 14, 16, 18, 512, 4096, 8192, 8190, 8194, 8192 + 526, 100_002, 512 * 8192, 512 * 8192 + 8192 + 30]


def reference(data: NDArray[np.uint8]) -> str:
    """The checksum of bytes, computed the plain way."""
    padded = np.concatenate([data, np.zeros(-len(data) % 16, np.uint8)])
    blocks = padded.view(np.uint32).reshape(-1, 4)
    places = np.arange(len(blocks), dtype=np.uint32)[:, None]
    total = ""
    for start, step, pairs in zip(START, STEP, PAIRS, strict=True):
        words = (blocks + start + places * step).astype(np.uint64)
        products = sum(words[:, a] * words[:, b] for a, b in pairs)
        total += f"{int(np.sum(products, dtype=np.uint64)):016x}"
    return total


def checksum_of(arrays: Arrays, data: NDArray[np.uint8], kind: DeviceType | None = None) -> str:
    """The device's checksum, as a device of another kind would compute it."""
    info = arrays.device.info
    checksum = Checksum(replace(info, type=kind or info.type), arrays.device.kernels)
    source = arrays.put(data)
    shares = arrays.put(np.full(Checksum.share_bytes(len(data)), 0xA5, np.uint8))
    arrays.run(lambda recorder: checksum.record(recorder, src=source.address, nbytes=len(data), shares=shares.address))
    return checksum.combined(memoryview(shares.values.tobytes()))


def random_bytes(size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [DeviceType.SOFTWARE, DeviceType.DISCRETE], ids=lambda kind: kind.value)
def test_it_is_the_reference_s(arrays: Arrays, kind: DeviceType, size: int) -> None:
    data = random_bytes(size)
    assert checksum_of(arrays, data, kind) == reference(data)


@pytest.mark.parametrize("size", [2, 16, 30, 100_002])
def test_the_host_s_is_the_same_however_the_bytes_come(size: int) -> None:
    data, host = random_bytes(size), HostChecksum()
    for start in range(0, size, 4096):
        host.update(memoryview(data[start : start + 4096].tobytes()))
    assert host.value() == reference(data)


@pytest.mark.parametrize("size", [16, 30, 100_002])
def test_bytes_after_the_end_do_not_count(arrays: Arrays, size: int) -> None:
    data = random_bytes(size + 64)
    checksum = Checksum(arrays.device.info, arrays.device.kernels)
    source, shares = arrays.put(data), arrays.put(np.zeros(Checksum.share_bytes(size), np.uint8))
    arrays.run(lambda recorder: checksum.record(recorder, src=source.address, nbytes=size, shares=shares.address))
    assert checksum.combined(memoryview(shares.values.tobytes())) == reference(data[:size])


def test_any_flipped_bit_changes_it(arrays: Arrays) -> None:
    data = np.zeros(50, np.uint8)  # the sums of nothing must not hide a place
    seen = {checksum_of(arrays, data)}
    for bit in range(0, len(data) * 8, 7):
        changed = data.copy()
        changed[bit // 8] ^= 1 << bit % 8
        seen.add(checksum_of(arrays, changed))
    assert len(seen) == 1 + len(range(0, len(data) * 8, 7))


def test_the_order_of_blocks_and_words_counts(arrays: Arrays) -> None:
    data = random_bytes(4096)
    words = data.view(np.uint32)
    swapped_words, swapped_blocks, shifted = words.copy(), data.reshape(-1, 16).copy(), np.roll(data, 16)
    swapped_words[[100, 101]] = words[[101, 100]]
    swapped_blocks[[3, 200]] = swapped_blocks[[200, 3]]
    variants = [data, swapped_words.view(np.uint8), swapped_blocks.reshape(-1), shifted]
    assert len({checksum_of(arrays, variant) for variant in variants}) == 4


@pytest.mark.parametrize("size", [0, 15, 1 << 36])
def test_sizes_that_it_can_not_sum_are_refused(arrays: Arrays, size: int) -> None:
    checksum = Checksum(arrays.device.info, arrays.device.kernels)
    with pytest.raises(ValueError, match=f"got {size}"):
        arrays.run(lambda recorder: checksum.record(recorder, src=0, nbytes=size, shares=0))
