"""A tokenizer whose vocabulary is made, and lives, in a process of its own."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, cast

from unicorn_async.errors import TokenizerLostError, UnicornError
from unicorn_async.tokenizer.caller import caller
from unicorn_async.tokenizer.child import Child, connected, shut
from unicorn_async.tokenizer.pieces import PieceTable
from unicorn_async.tokenizer.tokenizer import Tokenizer
from unicorn_async.tokenizer.worker import BESIDE, Work

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    from unicorn_async.tokenizer.apart import Call
    from unicorn_async.tokenizer.facts import TokenizerFacts
    from unicorn_async.tokenizer.worker import Source

_log = logging.getLogger(__name__)

_NAME = "the tokenizer's process"


class TokenizerProcess:
    """Starts the process, and is the `Encoder` of its tokenizer; close it at the end. Any thread may use it.

    Until `tokenizer` has returned there is nothing to encode with. The process ends with this one, however that ends.
    """

    def __init__(self, source: Source, *, keep_in: Path | None = None, in_background: bool = False) -> None:
        """Start it; the others as in `Work`."""
        self._child = _started()
        self._work = Work(source, keep_in, in_background)
        self._lock = threading.Lock()
        self._is_closed = False
        self.pieces = RemotePieces(self)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    def tokenizer(self) -> Tokenizer:
        """Wait until the tokenizer is made, and return it; to be called once.

        Raises:
            TokenizerError: the model's tokenizer can't be used, or the process was closed meanwhile.
        """
        with self._lock:
            answer = self._answered(self._work)
        facts, self.pieces.strip = cast("tuple[TokenizerFacts, tuple[bytes, int]]", answer)
        return Tokenizer(self, facts, apart=self)

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; see `Encoder.encode`."""
        return cast("list[int]", self.ask((text, with_control)))

    def at_once(self) -> None:
        """Return nothing: nobody has the encoder before its vocabulary is there."""

    async def whole(self) -> None:
        """Return at once."""

    def least_tokens(self, text: str) -> int:
        """Return 0: what is long enough to be refused by its bytes is looked at where it is encoded, by `run`."""
        return 0

    def run(self, call: Call) -> list[int]:
        """Have a copy of the process make a call, beside whatever the process is asked meanwhile; see `Apart`.

        When who waits for it goes (see `Caller`), the copy ends at once.
        """
        try:
            return self._run(call)
        except TokenizerLostError:
            if self._is_closed or caller().has_gone:
                raise
            return self._run(call)

    def _run(self, call: Call) -> list[int]:
        connection, theirs = connected(_NAME)
        with connection:
            with theirs:
                self._hand_over(theirs.fileno())
            try:
                with caller().ending(partial(shut, connection)):
                    connection.send(call)
                    answer = cast("array[int] | UnicornError", connection.recv())
            except (OSError, EOFError) as exc:
                raise TokenizerLostError("the process that encoded the text has ended") from exc
        if isinstance(answer, UnicornError):
            try:
                raise answer
            finally:
                del answer  # whose traceback has this frame: the two, and the text, would be there for long
        return answer.tolist()

    def _hand_over(self, descriptor: int) -> None:
        """Have the process make a copy of itself that serves the other end of a socket."""
        with self._lock:
            try:
                self._send_descriptor(descriptor)
            except OSError:
                self._child.kill()  # if it has not ended, it waits for what does not come
                self._start_again()
                try:
                    self._send_descriptor(descriptor)
                except OSError as exc:
                    raise TokenizerLostError(f"the tokenizer's process can't be reached: {exc.strerror}") from exc

    def _send_descriptor(self, descriptor: int) -> None:
        self._child.connection.send(BESIDE)
        self._child.send_descriptor(descriptor)

    def ask(self, request: object) -> object:
        """Send a request and wait for the answer, or raise the error that it is.

        A process that has ended is started again, which takes as long as the first time, and asked once more.

        Raises:
            TokenizerLostError: it ended again, can't be started, or was closed.
        """
        with self._lock:
            try:
                return self._answered(request)
            except TokenizerLostError:
                self._start_again()
                return self._answered(request)

    def _answered(self, request: object) -> object:
        try:
            self._child.connection.send(request)
            answer: object = self._child.connection.recv()
        except (OSError, EOFError) as exc:
            raise TokenizerLostError("the tokenizer's process has ended") from exc
        if isinstance(answer, UnicornError):
            try:
                raise answer
            finally:
                del answer  # whose traceback has this frame: the two, and the text, would be there for long
        return answer

    def _start_again(self) -> None:
        """Replace the process, with the lock held: not beside `close`."""
        if self._is_closed:
            raise TokenizerLostError("the tokenizer's process has ended")
        _log.warning("the tokenizer's process has ended (%s); it is started again", self._child.wait())
        self._child.connection.close()
        self._child = _started()
        self._answered(self._work._replace(keep_in=None, in_background=False))

    def close(self) -> None:
        """End the process; whoever waits for an answer gets an error."""
        self._is_closed = True
        self._child.kill()
        with self._lock:  # a process that is started beside this is another one
            self._child.kill()
            self._child.connection.close()


def _started() -> Child:
    return Child("worker", _NAME)


class RemotePieces:
    """The bytes of tokens: asked for one by one, until the process has put together the table of all."""

    def __init__(self, process: TokenizerProcess) -> None:
        self.strip = (b" ", 0)
        self._process = process
        self._known: dict[int, bytes] = {}
        self._table: PieceTable | None = None

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token, special ones included; empty for an id outside of the vocabulary."""
        if self._table is not None:
            return self._table[token_id]
        piece = self._known.get(token_id)
        if piece is None:
            answer = self._process.ask(token_id)
            if isinstance(answer, PieceTable):
                self._table = answer
                return answer[token_id]
            piece = self._known[token_id] = cast("bytes", answer)
        return piece

    def table(self, num_ids: int) -> PieceTable:
        """Return the bytes of all tokens; see `PieceBytes`."""
        del num_ids  # the process knows it
        if self._table is None:
            self._table = cast("PieceTable", self._process.ask(None))
        return self._table
