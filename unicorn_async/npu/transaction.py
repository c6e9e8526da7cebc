"""The instruction stream that moves data between memory and the NPU's cores.

A run's instructions are a transaction: descriptors are written into the registers of a column's interface to memory,
each is patched with the address of one of the run's buffers, tasks are pushed into a channel's queue, and a wait
takes the token that a task gives at its end. The encoding is that of mlir-aie's `TxnEncoding.h` (v1.4.0); what
depends on the toolchain (header, constant words of a descriptor, routing of tokens, channels of a team) is read
out of the compiler's own instructions when the kernels are built, and lies in their manifest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from unicorn_async.errors import NpuBuildError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WRITE, _BLOCK_WRITE, _MASK_WRITE, _WAIT, _PATCH = 0, 1, 3, 0x80, 0x81
_WORDS = {_WRITE: 6, _MASK_WRITE: 7, _WAIT: 4, _PATCH: 12}
_BLOCK_WRITE_HEADER = 4
_HEADER_WORDS = 4

_COLUMN_SHIFT = 25
_TILE_MASK = 0xFFFFF
_DESCRIPTOR_BASE, _DESCRIPTOR_STRIDE = 0x1D000, 0x20
DESCRIPTOR_WORDS = 8
_BLOCK_WRITE_BYTES = 4 * (_BLOCK_WRITE_HEADER + DESCRIPTOR_WORDS)
_PATCH_BYTES = 4 * _WORDS[_PATCH]
_QUEUES = {0x1D204: (0, 0), 0x1D20C: (0, 1), 0x1D214: (1, 0), 0x1D21C: (1, 1)}  # direction, channel
_QUEUE_ADDRESSES = {queue: address for address, queue in _QUEUES.items()}
_TOKEN = 0x80000000
_NEXT_SHIFT, _USE_NEXT, _VALID = 27, 1 << 26, 1 << 25


class Direction(IntEnum):
    """Which way a channel moves data; numbered as the hardware does."""

    TO_MEMORY = 0
    FROM_MEMORY = 1


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of a column's interface to memory."""

    column: int
    direction: Direction
    index: int

    @property
    def queue(self) -> int:
        """Address of the register that takes tasks."""
        return self.column << _COLUMN_SHIFT | _QUEUE_ADDRESSES[self.direction, self.index]

    @property
    def control(self) -> int:
        """Address of the register that says, among others, where the channel's tokens go."""
        return self.queue - 4


class Transfer(NamedTuple):
    """A piece of one of the run's buffers, `argument` counted among them; offset and size in bytes, both of words."""

    argument: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WriteDescriptor:
    """Fill a descriptor of a column; the address is patched afterwards."""

    column: int
    index: int
    words: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """What the descriptor moves."""
        return 4 * self.words[0]

    @property
    def next_index(self) -> int | None:
        """The descriptor that follows in the task."""
        return self.words[7] >> _NEXT_SHIFT & 0xF if self.words[7] & _USE_NEXT else None


@dataclass(frozen=True, slots=True)
class PatchAddress:
    """Put the address of a buffer, plus an offset in bytes, into a descriptor."""

    column: int
    index: int
    argument: int
    offset: int


@dataclass(frozen=True, slots=True)
class PushTask:
    """Queue the chain of descriptors that begins with `first`."""

    channel: Channel
    first: int
    token: bool


@dataclass(frozen=True, slots=True)
class WaitToken:
    """Wait until a task of the channel has given its token."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class MaskWrite:
    """Anything that the compiler sets by a mask, such as where tokens go; all words of the instruction."""

    words: tuple[int, ...]


Operation: TypeAlias = WriteDescriptor | PatchAddress | PushTask | WaitToken | MaskWrite


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a build's toolchain wants in every stream.

    `header` are the first two words, `descriptor` words 2 to 7 of a linear transfer's descriptor, and `preamble` the
    instructions that come first.
    """

    header: tuple[int, int]
    descriptor: tuple[int, ...]
    preamble: tuple[tuple[int, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that every stream has of it."""
        return 4 * (_HEADER_WORDS + sum(map(len, self.preamble)))


_PACK_TRANSFER = struct.Struct(f"<{_BLOCK_WRITE_HEADER + DESCRIPTOR_WORDS + _WORDS[_PATCH]}I").pack
_PACK = {count: struct.Struct(f"<{count}I").pack for count in _WORDS.values()}


class TransactionWriter:
    """Collects a run's instructions; of a long prompt there are hundreds of thousands."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._pieces = [_PACK[len(words)](*words) for words in dialect.preamble]
        self._nbytes = dialect.nbytes
        self._num_operations = len(dialect.preamble)

    def task(self, channel: Channel, transfers: Sequence[tuple[int, Transfer]]) -> None:
        """Write a chain of (descriptor's number, transfer), and push it; it gives a token at its end."""
        column = channel.column
        *constants, control = self._dialect.descriptor
        last = len(transfers) - 1
        for position, (index, (argument, offset, nbytes)) in enumerate(transfers):
            address = column << _COLUMN_SHIFT | _DESCRIPTOR_BASE + _DESCRIPTOR_STRIDE * index
            following = transfers[position + 1][0] << _NEXT_SHIFT | _USE_NEXT if position < last else 0
            words = (nbytes // 4, 0, *constants, control | following)
            block_write = (_BLOCK_WRITE, column, address, _BLOCK_WRITE_BYTES, *words)
            patch = (_PATCH, _PATCH_BYTES, 0, 0, 0, 0, address + 4, 0, argument, 0, offset, 0)
            self._pieces.append(_PACK_TRANSFER(*block_write, *patch))
        self._nbytes += len(transfers) * (_BLOCK_WRITE_BYTES + _PATCH_BYTES)
        self._num_operations += 2 * len(transfers)
        self._add(_WRITE, 0, channel.queue, 0, transfers[0][0] | _TOKEN, 4 * _WORDS[_WRITE])

    def wait(self, channel: Channel) -> None:
        """Take one token of the channel."""
        place = int(channel.direction) | channel.column << 16
        self._add(_WAIT, 4 * _WORDS[_WAIT], place, 1 << 8 | 1 << 16 | channel.index << 24)

    @property
    def nbytes(self) -> int:
        """Size of the stream so far."""
        return self._nbytes

    def words(self) -> NDArray[np.uint32]:
        """Return the stream."""
        header = _PACK[_HEADER_WORDS](*self._dialect.header, self._num_operations, self.nbytes)
        return np.frombuffer(b"".join([header, *self._pieces]), "<u4")

    def _add(self, *words: int) -> None:
        self._pieces.append(_PACK[len(words)](*words))
        self._nbytes += 4 * len(words)
        self._num_operations += 1


def decode(words: Sequence[int] | NDArray[np.uint32]) -> tuple[tuple[int, int], list[Operation]]:
    """Return a stream's header and operations.

    Raises:
        NpuBuildError: it is not a stream of the operations above; the message says where.
    """
    stream = [int(word) for word in words]
    if len(stream) < _HEADER_WORDS or stream[3] != 4 * len(stream):
        raise NpuBuildError(f"instructions: expected a header that says {4 * len(stream)} bytes, got {stream[:4]}")
    operations: list[Operation] = []
    at = _HEADER_WORDS
    while at < len(stream):
        opcode = stream[at] & 0xFF
        size = _size(stream, at, opcode)
        operations.append(_operation(opcode, stream[at : at + size], at))
        at += size
    if len(operations) != stream[2]:
        raise NpuBuildError(f"instructions: expected {stream[2]} operations, got {len(operations)}")
    return (stream[0], stream[1]), operations


def _size(stream: list[int], at: int, opcode: int) -> int:
    if opcode == _BLOCK_WRITE:
        size = stream[at + 3] // 4 if at + 3 < len(stream) else 0
        known = size == _BLOCK_WRITE_HEADER + DESCRIPTOR_WORDS
    else:
        size = _WORDS.get(opcode, 0)
        known = size > 0
    if not known or at + size > len(stream):
        raise NpuBuildError(f"instructions: word {at}: expected a known operation, got {stream[at : at + 4]}")
    return size


def _operation(opcode: int, words: list[int], at: int) -> Operation:
    if opcode == _MASK_WRITE:
        return MaskWrite(tuple(words))
    if opcode == _WAIT:
        direction, index = Direction(words[2] & 1), words[3] >> 24
        return WaitToken(Channel(words[2] >> 16 & 0xFF, direction, index))
    if opcode == _WRITE:
        queue = _QUEUES.get(words[2] & _TILE_MASK)
        if queue is None:
            raise NpuBuildError(f"instructions: word {at}: write to {words[2]:#x}, which is no task queue")
        channel = Channel(words[2] >> _COLUMN_SHIFT, Direction(queue[0]), queue[1])
        return PushTask(channel, words[4] & 0xF, bool(words[4] & _TOKEN))
    address = words[2] if opcode == _BLOCK_WRITE else words[6] - 4
    column, index = address >> _COLUMN_SHIFT, ((address & _TILE_MASK) - _DESCRIPTOR_BASE) // _DESCRIPTOR_STRIDE
    if _descriptor_address(column, index) != address or not 0 <= index < 16:
        raise NpuBuildError(f"instructions: word {at}: {address:#x} is no descriptor")
    if opcode == _BLOCK_WRITE:
        return WriteDescriptor(column, index, tuple(words[_BLOCK_WRITE_HEADER:]))
    return PatchAddress(column, index, words[8], words[10])


def _descriptor_address(column: int, index: int) -> int:
    return column << _COLUMN_SHIFT | _DESCRIPTOR_BASE + _DESCRIPTOR_STRIDE * index


def is_linear(descriptor: Sequence[int]) -> bool:
    """Whether a descriptor's words 2 to 7 say a valid transfer without packets, strides, locks or a successor."""
    packet, strides_0, strides_1, strides_2, iteration, control = descriptor
    no_strides = not strides_0 & 0x3FFFFFFF and not strides_1 & 0x3FFFFFFF and not strides_2 & 0xFFFFF
    return no_strides and not packet & 1 << 30 and not iteration and control == _VALID
