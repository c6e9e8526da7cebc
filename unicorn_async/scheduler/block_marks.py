"""What holds of a text's blocks, remembered: who waits is looked at before each step, and few blocks change in one."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from unicorn_async.scheduler.block_changes import Remembered
from unicorn_async.scheduler.block_keys import number_keys

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.block_changes import BlockChanges
    from unicorn_async.scheduler.sequence import Sequence


class BlockMarks:
    """Says which of a sequence's blocks pass some tests, and asks anew only for those that have changed since.

    `changes` have the key of a block before its test says anything else than before.
    """

    def __init__(self, tests: SequenceOf[Callable[[bytes], bool]], changes: SequenceOf[BlockChanges]) -> None:
        self._tests = tuple(tests)
        self._changes = tuple(changes)

    def of(self, sequence: Sequence) -> list[bytearray]:
        """Return, by test, a 1 or a 0 for each key that the sequence has; they hold until something changes."""
        if not self._tests:
            return []
        remembered = sequence.block_marks.get(self)
        if remembered is None:
            remembered = Remembered(len(self._tests), len(self._changes))
            sequence.block_marks[self] = remembered
        keys, marks = sequence.block_keys, remembered.marks
        counts = [changes.count for changes in self._changes]
        if counts != remembered.seen:
            if marks[0]:
                self._look_again(sequence, remembered)
            remembered.seen = counts
        if len(marks[0]) < len(keys):
            for passes, test in zip(marks, self._tests, strict=True):
                passes.extend(map(test, islice(keys, len(passes), None)))
        return marks

    def _look_again(self, sequence: Sequence, remembered: Remembered) -> None:
        """Ask anew for what has changed since."""
        marks, numbers, size = remembered.marks, number_keys(sequence), len(remembered.marks[0])
        for changes, seen in zip(self._changes, remembered.seen, strict=True):
            changed = changes.since(seen)
            if changed is None:
                for passes in marks:
                    passes.clear()
                return
            for key in changed:
                number = numbers.get(key, size)
                if number < size:
                    for passes, test in zip(marks, self._tests, strict=True):
                        passes[number] = test(key)
