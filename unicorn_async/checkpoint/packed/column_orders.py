"""GPTQ's act-order without static groups: in which group each column of a matrix is, read with the headers."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from unicorn_async.checkpoint.packed.parts import Parts
    from unicorn_async.packing import Plane

_MAX_COLUMNS = 1 << 24  # what f32, which orders are on the device, counts to


class ColumnOrders:
    """The groups of a directory's matrices; equal ones, of matrices with the same input, are checked once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._known: dict[tuple[int, bytes], str] = {}

    def digest(self, groups: Plane, columns: int) -> str:
        """Return what equal orders have in common, "" where columns of a group lie side by side as they are.

        Raises:
            CheckpointError: a number is none of a group, or the tensor can't be read.
            UnsupportedModelError: groups have more or fewer columns than the configuration says.
        """
        where = f"{self._parts.directory}: tensor {groups.name!r}"
        if columns > _MAX_COLUMNS:
            raise UnsupportedModelError(f"{where}: {columns} columns in an order, at most {_MAX_COLUMNS} are supported")
        content = self._parts.content_of(groups, 4 * columns)
        key = groups.expected, content
        if key not in self._known:
            self._known[key] = _digest(content, columns, groups.expected, where)
        return self._known[key]


def _digest(content: bytes, columns: int, size: int, where: str) -> str:
    numbers = array("i", content)
    if sys.byteorder == "big":
        numbers.byteswap()
    count = -(-columns // size)
    for number in (min(numbers), max(numbers)):
        if not 0 <= number < count:
            place = numbers.index(number)
            raise CheckpointError(f"{where}: column {place} is in group {number}, expected 0 to {count - 1}")
    sizes = Counter(numbers)
    for group in range(count):
        expected = min(size, columns - group * size)
        if sizes[group] != expected:
            raise UnsupportedModelError(f"{where}: group {group} has {sizes[group]} columns, expected {expected}")
    if all(left <= right for left, right in pairwise(numbers)):
        return ""
    return hashlib.sha256(content).hexdigest()
