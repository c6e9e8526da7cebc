"""A tokenizer whose vocabulary is made, and lives, in a process of its own."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from unicorn_async.errors import TokenizerLostError, UnicornError
from unicorn_async.tokenizer.caller import caller
from unicorn_async.tokenizer.child import connected, limit_waits, shut
from unicorn_async.tokenizer.conversation import ChatText
from unicorn_async.tokenizer.lasting_child import LastingChild
from unicorn_async.tokenizer.pieces import PieceTable
from unicorn_async.tokenizer.tokenizer import Tokenizer
from unicorn_async.tokenizer.worker import BESIDE, SERVING, Work

if TYPE_CHECKING:
    from array import array
    from multiprocessing.connection import Connection
    from pathlib import Path

    from unicorn_async.tokenizer.apart import Call
    from unicorn_async.tokenizer.facts import TokenizerFacts
    from unicorn_async.tokenizer.worker import Source

_log = logging.getLogger(__name__)

_NAME = "the tokenizer's process"
_CHANGED = "the model's files are not what they were"
_ANSWER_S = 10.0  # for what takes milliseconds: a process that takes longer is stopped, or out of reach
_START_S = 300.0  # for the largest vocabulary, on a machine that does much else
_CHARS_PER_S = 10_000  # of a text; the library does a hundred times as many


class TokenizerProcess:
    """Starts the process, and is the `Encoder` of its tokenizer; close it at the end. Any thread may use it.

    Until `tokenizer` has returned there is nothing to encode with. The process ends with this one, however that ends.
    """

    part: ClassVar = "tokenizer"

    def __init__(self, source: Source, *, keep_in: Path | None = None, in_background: bool = False) -> None:
        """Start it; the others as in `Work`."""
        self._work = Work(source, keep_in, in_background)
        self._child = LastingChild("worker", _NAME, _CHANGED, prepare=self._make_anew, retry=self._replace)
        self.pieces = RemotePieces(self)

    @property
    def outage(self) -> str | None:
        """Why no text can be encoded now; None if it can, or nobody knows of a reason."""
        return self._child.outage

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    def tokenizer(self) -> Tokenizer:
        """Wait until the tokenizer is made, and return it; to be called once.

        Raises:
            TokenizerError: the model's tokenizer can't be used, or the process was closed meanwhile.
        """
        with self._child.held():
            answer = self._answered(self._work, _START_S)
        facts, self.pieces.strip = cast("tuple[TokenizerFacts, tuple[bytes, int]]", answer)
        return Tokenizer(self, facts, apart=self)

    def make(self) -> None:
        """Wait until the tokenizer is made, in place of `tokenizer` where all that this tells was kept.

        Files that can't be used were good when that was kept: it is an outage, and they are tried again.

        Raises:
            TokenizerLostError: it can't be had, now or ever.
        """
        with self._child.held(), self._child.noted():
            self._answered(self._work, _START_S)

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; see `Encoder.encode`."""
        return cast("list[int]", self.ask((text, with_control), _ANSWER_S + len(text) / _CHARS_PER_S))

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
            if self._child.is_closed or caller().has_gone:
                raise
            return self._run(call)

    def _run(self, call: Call) -> list[int]:
        connection, theirs = connected(_NAME, _ANSWER_S)
        with connection:
            with theirs:
                pid = self._hand_over(theirs.fileno())
            try:
                with caller().ending(partial(shut, connection)):
                    self._await_copy(connection, pid)
                    limit_waits(connection, _ANSWER_S + _num_chars(call) / _CHARS_PER_S)
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

    def _await_copy(self, connection: Connection, pid: int) -> None:
        try:
            connection.recv_bytes(len(SERVING))
        except BlockingIOError:
            with self._child.lock:
                if self.pid == pid:  # else another has found it stopped, too
                    self._give_up(_ANSWER_S)
            raise

    def _give_up(self, seconds: float) -> None:
        _log.error("%s has not answered within %g s, and is ended", _NAME, seconds)
        self._child.kill()

    def _hand_over(self, descriptor: int) -> int:
        """Have the process make a copy of itself that serves the other end of a socket; return the process's number."""
        with self._child.held():
            try:
                self._send_descriptor(descriptor)
            except OSError:
                self._replace()  # if it has not ended, it waits for what does not come
                try:
                    self._send_descriptor(descriptor)
                except OSError as exc:
                    raise TokenizerLostError(f"the tokenizer's process can't be reached: {exc.strerror}") from exc
            return self.pid

    def _send_descriptor(self, descriptor: int) -> None:
        limit_waits(self._child.connection, _ANSWER_S)
        self._child.connection.send(BESIDE)
        self._child.send_descriptor(descriptor)

    def ask(self, request: object, seconds: float = _START_S) -> object:
        """Send a request and wait for the answer, or raise the error that it is.

        A process that has ended, or does not answer in so many seconds, is started again, which takes as long as the
        first time, and asked once more. Who waits meanwhile waits for one such attempt, not for one of its own.

        Raises:
            TokenizerLostError: it ended again, can't be started, or was closed.
        """
        with self._child.held():
            try:
                return self._answered(request, seconds)
            except TokenizerLostError:
                with self._child.noted():
                    self._child.start_again()
                return self._answered(request, seconds)

    def _answered(self, request: object, seconds: float) -> object:
        try:
            limit_waits(self._child.connection, seconds)
            self._child.connection.send(request)
            answer: object = self._child.connection.recv()
        except BlockingIOError as exc:
            self._give_up(seconds)
            raise TokenizerLostError(f"{_NAME} does not answer") from exc
        except (OSError, EOFError) as exc:
            raise TokenizerLostError("the tokenizer's process has ended") from exc
        if isinstance(answer, UnicornError):
            try:
                raise answer
            finally:
                del answer  # whose traceback has this frame: the two, and the text, would be there for long
        return answer

    def _replace(self) -> None:
        """Have another process, with the lock held, whether or not this one has ended."""
        self._child.kill()
        with self._child.noted():
            self._child.start_again()

    def _make_anew(self) -> None:
        self._answered(self._work._replace(keep_in=None, in_background=False), _START_S)

    def close(self) -> None:
        """End the process; whoever waits for an answer gets an error."""
        self._child.close()


def _num_chars(call: Call) -> int:
    text = call.arguments[0]
    return len(text.text if isinstance(text, ChatText) else cast("str", text))


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
            answer = self._process.ask(token_id, _ANSWER_S)  # by the event loop, too: a token's text is wanted now
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
