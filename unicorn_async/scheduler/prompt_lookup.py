"""Proposes that an answer goes on as its prompt, its prediction, or the answer itself did behind the same tokens."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from unicorn_async.scheduler.proposer import HitRate

if TYPE_CHECKING:
    from collections.abc import Sequence

_GRAM = 3  # tokens that have to be the same
_MOST_PLACES = 1 << 16  # of the index, 4 bytes each
_AT_ONCE = 256  # tokens that are looked at when it is asked: the rest when it is asked again


class PromptLookup:
    """Finds the last place where the newest three tokens stood before, and follows the text from there.

    As long as what came was what stood there, it goes on from that place; else it looks for another. Whether it was
    right is noted of every token, proposed or not. Its index has a place for each hash of three tokens, the latest,
    and grows no further: a token costs as much in a long text as in a short one. A prompt is indexed from its end
    backwards, some tokens whenever it is asked.

    A prediction is followed from its beginning on, and goes before the prompt: it is indexed first, and what comes
    behind its end is not foreseen.
    """

    def __init__(self, prompt_ids: Sequence[int], prediction_ids: Sequence[int] = ()) -> None:
        self._tokens = [*prediction_ids, *prompt_ids]
        self._num_given = len(self._tokens)
        self._num_predicted = len(prediction_ids)
        self._unread = [(self._num_predicted, self._num_given)]  # what is to be indexed, the last part first
        if prediction_ids:
            self._unread.append((0, self._num_predicted))
        places = max(1024, 1 << (2 * self._num_given).bit_length())
        self._index = array("i", bytes(4 * min(places, _MOST_PLACES)))  # -> the end of such tokens; 0 = none yet
        self._next = 0 if self._num_predicted else -1  # where the text is followed; -1 = nowhere
        self._hits = HitRate()
        self._is_behind = False  # the answer goes on after what was read of it

    @property
    def rate(self) -> float:
        """See `Proposer`."""
        return self._hits.value if self._next >= 0 and not self._is_behind else 0.0

    @property
    def is_predicted(self) -> bool:
        """See `Proposer`."""
        return 0 <= self._next < self._num_predicted

    def follow(self, output_ids: Sequence[int]) -> None:
        """See `Proposer`."""
        self._read_backwards()
        seen = len(self._tokens) - self._num_given
        for token in output_ids[seen : seen + _AT_ONCE]:
            self._read(token)
        self._is_behind = len(output_ids) > seen + _AT_ONCE
        if not seen and self._next < 0:
            self._find()

    def propose(self, ahead: int, most: int) -> tuple[int, ...]:
        """See `Proposer`; what is behind the end of the text repeats what is proposed itself."""
        if self._next < 0:
            return ()
        if self.is_predicted:
            return tuple(self._tokens[self._next + ahead : min(self._next + ahead + most, self._num_predicted)])
        found = self._tokens[self._next : self._next + ahead + most]
        period = len(self._tokens) - self._next
        while len(found) < ahead + most:
            found.append(found[len(found) - period])
        return tuple(found[ahead:])

    def _read(self, token: int) -> None:
        """Take the next token of the answer."""
        if self._next >= 0:
            is_right = self._tokens[self._next] == token
            self._hits.note(is_right=is_right)
            ends = self._next + 1 == self._num_predicted
            self._next = self._next + 1 if is_right and not ends else -1
        self._tokens.append(token)
        if self._next < 0:
            self._find()
        end = len(self._tokens)
        if end >= _GRAM:
            self._index[self._place(end)] = end

    def _find(self) -> None:
        """Follow the text from the latest place where it stood as it ends now, if there is one."""
        tokens, end = self._tokens, len(self._tokens)
        if end < _GRAM:
            return
        found = self._index[self._place(end)]
        if 0 < found < end and tokens[found - _GRAM : found] == tokens[end - _GRAM :]:
            self._next = found

    def _read_backwards(self) -> None:
        """Index some more of the prediction, then of the prompt, what is nearer to its end first."""
        if not self._unread:
            return
        first, unread = self._unread.pop()
        stop = max(unread - _AT_ONCE, first)
        for end in range(unread, max(stop, first + _GRAM - 1), -1):
            place = self._place(end)
            if end not in (self._num_predicted, self._num_given) and not self._index[place]:
                self._index[place] = end
        if stop > first:
            self._unread.append((first, stop))

    def _place(self, end: int) -> int:
        return hash(tuple(self._tokens[end - _GRAM : end])) & (len(self._index) - 1)
