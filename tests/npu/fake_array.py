"""The NPU's array, in software: it takes an instruction stream apart, moves data as descriptors say, and runs kernels.

It is strict where hardware is: a queue that overflows, a descriptor that is rewritten while it is in use, and a wait
for a token that can't come all fail. The kernels are the real ones, built by g++.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np

from tests.npu.kernel_library import FakeTeam
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES
from unicorn_async.npu.tile_budget import SHIM_QUEUE_DEPTH
from unicorn_async.npu.transaction import (
    Direction,
    MaskWrite,
    PatchAddress,
    PushTask,
    WaitToken,
    WriteDescriptor,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from unicorn_async.npu.geometry import HeadLayout
    from unicorn_async.npu.schedule import Team
    from unicorn_async.npu.transaction import Channel


class Hang(Exception):
    """The array waits for what never comes."""


class FakeArray:
    """The teams of cores of a build."""

    def __init__(self, library: Path, layout: HeadLayout, teams: Sequence[Team]) -> None:
        self._teams = {team.source: FakeTeam(library, layout) for team in teams}
        self._sinks = {team.sink: self._teams[team.source] for team in teams}
        self._input = {source: np.empty(0, np.uint8) for source in self._teams}
        self._output: dict[Channel, deque[NDArray[np.uint8]]] = {sink: deque() for sink in self._sinks}
        self.operations: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_of_argument: Counter[int] = Counter()  # read of each of a run's buffers
        self.most_buffers = 0  # that one team took in the last run

    @property
    def teams(self) -> list[FakeTeam]:
        """All of them."""
        return list(self._teams.values())

    def execute(self, words: NDArray[np.uint32], buffers: Sequence[NDArray[np.uint8]]) -> None:
        """Run a stream against the buffers as the NPU sees them."""
        descriptors: dict[tuple[int, int], WriteDescriptor] = {}
        addresses: dict[tuple[int, int], NDArray[np.uint8]] = {}
        busy: dict[Channel, deque[list[tuple[int, int]]]] = {}  # descriptors of tasks whose token was not taken
        tokens: Counter[Channel] = Counter()
        before = {source: team.buffers_taken for source, team in self._teams.items()}
        for operation in decode(words)[1]:
            self.operations[type(operation).__name__] += 1
            match operation:
                case MaskWrite():
                    continue
                case WriteDescriptor(column=column, index=index):
                    in_use = [place for tasks in busy.values() for task in tasks for place in task]
                    assert (column, index) not in in_use, f"descriptor {index} of column {column} is rewritten in use"
                    descriptors[column, index] = operation
                    addresses.pop((column, index), None)
                case PatchAddress(column=column, index=index, argument=argument, offset=offset):
                    nbytes = descriptors[column, index].nbytes
                    memory = buffers[argument][offset : offset + nbytes]
                    assert len(memory) == nbytes, f"{nbytes} bytes at {offset} leave buffer {argument}"
                    addresses[column, index] = memory
                    self.bytes_of_argument[argument] += nbytes
                case PushTask(channel=channel):
                    places = _chain(channel.column, operation.first, descriptors)
                    tasks = busy.setdefault(channel, deque())
                    tasks.append(places)
                    assert len(tasks) <= SHIM_QUEUE_DEPTH, f"the queue of {channel} overflows"
                    self._move(channel, [addresses[place] for place in places])
                    assert operation.token, "a task without a token is never known to have ended"
                    tokens[channel] += 1
                case WaitToken(channel=channel):
                    if not tokens[channel] or (channel.direction is Direction.TO_MEMORY and self._output[channel]):
                        raise Hang(f"{channel}: no token comes")
                    tokens[channel] -= 1
                    busy[channel].popleft()
        self.most_buffers = max(team.buffers_taken - before[source] for source, team in self._teams.items())
        assert not any(tokens.values()), "tokens are left for the next run to take"
        assert all(team.is_idle for team in self._teams.values()), "a core waits in the midst of an item"

    def _move(self, channel: Channel, pieces: list[NDArray[np.uint8]]) -> None:
        if channel.direction is Direction.TO_MEMORY:
            self._output[channel].extend(pieces)
            self._drain(channel)
            return
        self.bytes_read += sum(map(len, pieces))
        data = np.concatenate([self._input[channel], *pieces])
        team = self._teams[channel]
        while len(data) >= CORE_BUFFER_BYTES:
            team.feed(data[:CORE_BUFFER_BYTES].copy())
            data = data[CORE_BUFFER_BYTES:]
        self._input[channel] = data
        for sink, owner in self._sinks.items():
            if owner is team:
                self._drain(sink)

    def _drain(self, sink: Channel) -> None:
        """Move finished strips to where the output tasks say."""
        team, tasks = self._sinks[sink], self._output[sink]
        while tasks and team.strips:
            strip = team.strips.pop(0).view(np.uint8)
            tasks[0][: len(strip)] = strip
            tasks[0] = tasks[0][len(strip) :]
            if not len(tasks[0]):
                tasks.popleft()


def _chain(column: int, first: int, descriptors: dict[tuple[int, int], WriteDescriptor]) -> list[tuple[int, int]]:
    places = [(column, first)]
    while (following := descriptors[places[-1]].next_index) is not None:
        places.append((column, following))
    return places
