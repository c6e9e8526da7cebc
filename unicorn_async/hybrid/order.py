"""What a half of a step waits for, of the halves before it.

Halves have most of a device's memory for themselves: frames, and by their number the residual stream and the exchange.
All else is scratch that a piece of work writes before it reads it, on a queue that works in order. So a half begins

- behind the end of the half before it that has its number, and
- behind the end of a half that samples for one of its sequences: it takes that token, its counts, its keys and values;
- behind the beginning of a half that has an earlier part of a prompt of its own, and then attends in each layer behind
  it, whose keys and values it sees.

There is no other order between halves, of one step or of two.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.scheduler.batch import Batch

_BEGUN = 1  # stage; it is a larger one by as many layers as have attended


class HalfTurn:
    """How far a half is, for those behind it; made by `HalfOrder.enter`.

    Whoever runs the half awaits `may_begin` and, layer by layer, `may_attend`, and says as soon as it has `begun`,
    `attended` and `ended`: in the queue, or on the far device. A half that comes to nothing has to be `failed`.
    """

    def __init__(self, number: int, batch: Batch, num_layers: int, before: Iterable[HalfTurn]) -> None:
        self.number = number
        self._end = _BEGUN + num_layers + 1
        self._stage = 0
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._sampled = {item.sequence for item in batch.scheduled if item.samples}
        self._continued = {item.sequence for item in batch.scheduled if not item.samples}
        mine = self._sampled | self._continued
        self._behind = [one for one in before if one.number == number or one._sampled & mine]
        self._beside = [one for one in before if one not in self._behind and one._continued & mine]

    @property
    def has_ended(self) -> bool:
        """Whether all of the half is in the queue."""
        return self._stage == self._end

    async def may_begin(self) -> None:
        """Wait until the half's first commands may be submitted; raises what made one before it fail."""
        for one in self._behind:
            await one._reached(one._end)
        for one in self._beside:
            await one._reached(_BEGUN)

    async def may_attend(self, layer: int) -> None:
        """Wait until the keys and values that the half needs of others are in the cache; raises as `may_begin`."""
        for one in self._beside:
            await one._reached(_BEGUN + layer + 1)

    def begun(self) -> None:
        """Say that the half's first commands are in the queue."""
        self._reach(_BEGUN)

    def attended(self, layer: int) -> None:
        """Say that a layer's attention is done."""
        self._reach(_BEGUN + layer + 1)

    def ended(self) -> None:
        """Say that the half's last commands are in the queue."""
        self._leave()
        self._reach(self._end)

    def failed(self, error: BaseException) -> None:
        """Hand an error to those behind the half, unless it has ended."""
        if not self.has_ended:
            self._leave()
            self._error = error
            self._changed.set()

    def _leave(self) -> None:
        """Forget the halves before it, or each would keep all of its forerunners alive."""
        self._behind.clear()
        self._beside.clear()

    def _reach(self, stage: int) -> None:
        self._stage = stage
        self._changed.set()
        self._changed.clear()  # who waits now looks again, who comes later waits for the next change

    async def _reached(self, stage: int) -> None:
        while self._stage < stage:
            if self._error is not None:
                raise self._error
            await self._changed.wait()


class HalfOrder:
    """The halves that have not ended yet, in order."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._turns: list[HalfTurn] = []

    def enter(self, number: int, batch: Batch) -> HalfTurn:
        """Return the turn of a half of this number, behind all that entered before it."""
        self._turns = [turn for turn in self._turns if not turn.has_ended]
        turn = HalfTurn(number, batch, self._num_layers, self._turns)
        self._turns.append(turn)
        return turn
