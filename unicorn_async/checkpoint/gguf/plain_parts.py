"""Finds the strings of an array of short ones in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.checkpoint.gguf.plain_strings import SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_RUNS = 128  # in a part, of strings that are found in one go, and of others: a vocabulary has a few runs of spaces


def plain_part(data: bytes, most: int) -> tuple[bytes, int]:
    """Return the strings that `data` begins with, as a part of `PlainStrings`, and how many: at most `most`.

    In `data` each has its length in front, 64 bits little-endian. All lengths below 256 are found in one go, as what
    seven zeros follow; they are right where each is at the end of the string before it. From a longer string it goes on
    behind that, and so it does from an empty one. None are returned where there are many of those, or a string has a
    NUL or is no UTF-8.
    """
    octets = np.frombuffer(data, np.uint8)
    starts = _followed_by_zeros(octets)
    stops = starts + 8 + octets[starts]
    breaks = np.flatnonzero(stops[:-1] != starts[1:])  # what begins there is not followed by what was found next
    chain: list[NDArray[np.int64]] = []
    long: list[int] = []
    count = position = 0
    while count < most:
        if len(chain) + len(long) > _MOST_RUNS:
            return b"", 0
        index = int(np.searchsorted(starts, position))
        if index < len(starts) and starts[index] == position:
            place = int(np.searchsorted(breaks, index))
            last = int(breaks[place]) if place < len(breaks) else len(starts) - 1
            run = starts[index : min(last + 1, index + most - count)]
            if stops[index + len(run) - 1] > len(data):
                run = run[:-1]
            if not len(run):
                break
            chain.append(run)
            count += len(run)
            position = int(stops[index + len(run) - 1])
            continue
        stop = position + 8 + int.from_bytes(data[position : position + 8], "little")
        if position + 8 > len(data) or stop > len(data):
            break
        long.append(position)
        count += 1
        position = stop
    if not count:
        return b"", 0
    strings = octets[:position].copy()
    for run in chain:
        strings[run] = 0
    for start in long:
        strings[start : start + 8] = 0
    part = strings.tobytes()
    if position - np.count_nonzero(strings) != len(SEPARATOR) * count or not _is_utf8(part):
        return b"", 0
    return part, count


def _followed_by_zeros(octets: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the indices of bytes that seven zeros follow."""
    zero = octets == 0
    zero = zero[:-1] & zero[1:]
    zero = zero[:-2] & zero[2:]
    zero = zero[:-3] & zero[3:]  # and the six behind it
    return np.flatnonzero(zero[1:])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
