"""Several owners' queues, emptied in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Item = TypeVar("Item")


class RoundRobin(Generic[Item]):
    """What waits, of each owner first come, first served; owners take turns, and who has just had one goes last.

    So while an owner waits, no other gets more than one turn before it.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Item]:
        """All that waits, owner by owner."""
        for queue in self._queues.values():
            yield from queue

    @property
    def owners(self) -> Iterable[str]:
        """Who has something here, in the order of their turns."""
        return self._queues.keys()

    @property
    def first(self) -> Item:
        """Whose turn it is; there has to be something."""
        return next(iter(self._queues.values()))[0]

    def of(self, owner: str) -> Iterator[Item]:
        """An owner's items, the first one first."""
        return iter(self._queues.get(owner, ()))

    def add(self, owner: str, item: Item) -> None:
        """Have an item wait."""
        self._queues.setdefault(owner, deque()).append(item)
        self._num += 1

    def pop(self) -> Item:
        """Take the first one."""
        return self.pop_of(next(iter(self._queues)))

    def pop_of(self, owner: str) -> Item:
        """Take an owner's first one, whose turn it then was."""
        item = next(self.of(owner))
        self.take(owner, item)
        return item

    def take(self, owner: str, item: Item) -> None:
        """Take one of an owner's items, which waits; it costs as much as there are before it. That was its turn."""
        queue = self._queues[owner]
        queue.remove(item)
        self._num -= 1
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]

    def remove(self, owner: str, item: Item) -> bool:
        """Have an item wait no longer; return whether it did."""
        queue = self._queues.get(owner)
        if queue is None or item not in queue:
            return False
        queue.remove(item)
        self._num -= 1
        if not queue:
            del self._queues[owner]
        return True

    def num_of(self, owner: str) -> int:
        """How many items of an owner wait."""
        return len(self._queues.get(owner, ()))

    def last_of_most(self) -> Item:
        """The latest item of the owner that has most; there has to be something."""
        return max(self._queues.values(), key=len)[-1]
