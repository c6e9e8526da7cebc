"""Turns each team's items into a run's instructions.

A team has two input tasks and two output tasks in flight at most, so its queues never overflow and a descriptor is
never rewritten while it is in use: before a third task, the first one's token is taken. An item's output task is pushed
before its input, so cores can always get rid of their results. At the end all tokens are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from unicorn_async.npu.geometry import BF16_BYTES, CORE_BUFFER_BYTES, CORES_PER_TEAM, F32_BYTES
from unicorn_async.npu.tile_budget import CHAIN, MAX_RUN_BYTES, TASKS_IN_FLIGHT, TEAMS_PER_COLUMN
from unicorn_async.npu.transaction import Channel, Direction, TransactionWriter, Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.npu.transaction import Dialect

PACKET_BYTES = (1 + CORES_PER_TEAM) * CORE_BUFFER_BYTES  # of an item: its parameters, then its queries
_INPUTS_PER_TEAM = CHAIN * TASKS_IN_FLIGHT


class Argument(IntEnum):
    """The run's buffers."""

    CACHE = 0
    PACKETS = 1
    RESULTS = 2


@dataclass(frozen=True, slots=True)
class Team:
    """Where a build has put a team of cores: its column, and its channels there."""

    column: int
    input_channel: int
    output_channel: int

    @property
    def source(self) -> Channel:
        """The channel that reads memory."""
        return Channel(self.column, Direction.FROM_MEMORY, self.input_channel)

    @property
    def sink(self) -> Channel:
        """The channel that writes memory."""
        return Channel(self.column, Direction.TO_MEMORY, self.output_channel)


@dataclass(frozen=True, slots=True)
class ScheduledItem:
    """What of an item moves: its number among packets and results, its chunks in the cache, its results' bytes.

    Its queries are as many elements as its results, and come in whole buffers.
    """

    number: int
    runs: tuple[tuple[int, int], ...]
    result_offset: int
    result_bytes: int

    @property
    def packet_bytes(self) -> int:
        """Bytes of its parameters and of the buffers that its queries take."""
        return CORE_BUFFER_BYTES * (1 + -(-self.result_bytes * BF16_BYTES // (F32_BYTES * CORE_BUFFER_BYTES)))


def instructions(dialect: Dialect, teams: Sequence[tuple[Team, Sequence[ScheduledItem]]]) -> TransactionWriter:
    """Return the stream that has every team work through its items; teams take turns, task by task."""
    writer = TransactionWriter(dialect)
    streams = [_TeamStream(writer, team, items) for team, items in teams if items]
    for step in range(max((len(stream.tasks) for stream in streams), default=0)):
        for stream in streams:
            stream.push(step)
    for stream in streams:
        stream.finish()
    return writer


def stream_bytes(items: Sequence[ScheduledItem]) -> int:
    """Bound the instructions that these items take, without header and preamble, in bytes."""
    transfers = sum(1 + sum(-(-size // MAX_RUN_BYTES) for _, size in item.runs) + 1 for item in items)
    return transfers * 4 * (12 + 12 + 6 + 4)


class _TeamStream:
    """One team's tasks, in order."""

    def __init__(self, writer: TransactionWriter, team: Team, items: Sequence[ScheduledItem]) -> None:
        self._writer = writer
        self._source, self._sink = team.source, team.sink
        # Both teams of a column share its descriptors; which is which is told by their reading channel.
        self._inputs = team.input_channel * _INPUTS_PER_TEAM
        self._outputs = TEAMS_PER_COLUMN * _INPUTS_PER_TEAM + team.input_channel * TASKS_IN_FLIGHT
        self._num_outputs = 0
        self.tasks: list[tuple[ScheduledItem | None, list[Transfer]]] = []  # the item that begins with it
        for item in items:
            transfers = _transfers(item)
            self.tasks += [
                (None if start else item, transfers[start : start + CHAIN]) for start in range(0, len(transfers), CHAIN)
            ]

    def push(self, step: int) -> None:
        """Push a task, if there are so many."""
        if step >= len(self.tasks):
            return
        item, transfers = self.tasks[step]
        if item is not None:
            self._push_output(item)
        if step >= TASKS_IN_FLIGHT:
            self._writer.wait(self._source)
        first = self._inputs + step % TASKS_IN_FLIGHT * CHAIN
        self._writer.task(self._source, list(enumerate(transfers, first)))

    def finish(self) -> None:
        """Take the tokens that are left."""
        for _ in range(min(TASKS_IN_FLIGHT, len(self.tasks))):
            self._writer.wait(self._source)
        for _ in range(min(TASKS_IN_FLIGHT, self._num_outputs)):
            self._writer.wait(self._sink)

    def _push_output(self, item: ScheduledItem) -> None:
        if self._num_outputs >= TASKS_IN_FLIGHT:
            self._writer.wait(self._sink)
        index = self._outputs + self._num_outputs % TASKS_IN_FLIGHT
        transfer = Transfer(Argument.RESULTS, item.result_offset, item.result_bytes)
        self._writer.task(self._sink, [(index, transfer)])
        self._num_outputs += 1


def _transfers(item: ScheduledItem) -> list[Transfer]:
    packet = Transfer(Argument.PACKETS, item.number * PACKET_BYTES, item.packet_bytes)
    pieces = [
        Transfer(Argument.CACHE, offset + done, min(MAX_RUN_BYTES, size - done))
        for offset, size in item.runs
        for done in range(0, size, MAX_RUN_BYTES)
    ]
    return [packet, *pieces]
