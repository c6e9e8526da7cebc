"""Renders conversations by a model's chat template, in processes that end when it takes too long."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from unicorn_async.errors import TokenizerError, TokenizerLostError
from unicorn_async.tokenizer.apart import LONG_CHARS
from unicorn_async.tokenizer.caller import caller
from unicorn_async.tokenizer.child import connected, shut
from unicorn_async.tokenizer.conversation import ChatText, Conversation, RenderingSlowError
from unicorn_async.tokenizer.lasting_child import LastingChild
from unicorn_async.tokenizer.template_limits import MAX_SECONDS, PATIENCE, SHORT_SECONDS
from unicorn_async.tokenizer.template_messages import LATE, READY, Rendering, unpacked

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from unicorn_async.tokenizer.conversation import TemplateSource

_NAME = "the chat template's process"
_SPOILT = "its template can't be prepared any more"
_MAX_ANSWER = 1 << 27  # bytes: more than the longest text has
_LATE_S = 1.0  # after its time, a copy that has neither answered nor ended is stopped, or out of reach


class TemplateProcess:
    """Starts the process; the `Conversations` of a template, once it is prepared. Any thread may use it.

    Close it at the end. The process ends with this one, however that ends, and so do its copies: every conversation is
    rendered in one, of its own where it may take all of its time (see `hasty`).
    """

    part: ClassVar = "chat_template"

    def __init__(self) -> None:
        self._child = LastingChild("template_worker", _NAME, _SPOILT, prepare=self._prepare_anew, retry=self._look)
        self._source: TemplateSource | None = None
        self._names: frozenset[str] = frozenset()
        self._idle: list[Connection] = []  # to copies that others wait for

    @property
    def outage(self) -> str | None:
        """Why no conversation can be rendered now; None if it can, or nobody knows of a reason."""
        return self._child.outage

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    @property
    def names(self) -> frozenset[str]:
        """Names that the template asks for and does not set itself."""
        return self._names

    def prepare(self, source: TemplateSource) -> None:
        """Wait until the process has made a program of the template; to be called once, before all else.

        Raises:
            TokenizerError: the template is not valid, or the process was closed meanwhile.
        """
        with self._child.held():
            self._source = source
            self._names = self._prepared(source)
            self._idle.append(self._copy(SHORT_SECONDS))

    def text(self, conversation: Conversation) -> ChatText:
        """Return a conversation as text; see `Conversations.text`."""
        try:
            return self.render(Rendering(conversation, MAX_SECONDS, is_hasty=False))
        except RenderingSlowError as exc:
            raise TokenizerError(f"chat template: rendering took more than {MAX_SECONDS:g} s") from exc

    def hasty(self) -> HastyConversations:
        """Return one that others wait for, with `SHORT_SECONDS` each; a copy renders one after the other."""
        return HastyConversations(self)

    def render(self, rendering: Rendering) -> ChatText:
        """Return a conversation as text; a copy that ends before its time is made again once.

        When who waits for it goes (see `Caller`), it ends at once.

        Raises:
            RenderingSlowError: it took more than its seconds.
            RequestError, TokenizerError: as `Conversations.text`.
        """
        try:
            return self._render(rendering)
        except TokenizerLostError:
            if self._child.is_closed or caller().has_gone:
                raise
            return self._render(rendering)

    def close(self) -> None:
        """End the process; whoever waits for a text gets an error."""
        self._child.close()
        with self._child.lock:
            self._drop_idle()

    def _render(self, rendering: Rendering) -> ChatText:
        connection = self._connection(rendering.seconds, rendering.is_hasty)
        began = time.monotonic()
        is_sound = False
        try:
            with caller().ending(partial(shut, connection)):
                connection.send(rendering)
                answer = connection.recv_bytes(_MAX_ANSWER)
            is_sound = rendering.is_hasty
            return unpacked(answer)
        except RecursionError as exc:
            raise TokenizerError(f"chat template: {type(exc).__name__}") from exc
        except (OSError, EOFError, ValueError) as exc:
            is_sound = False
            if time.monotonic() - began >= rendering.seconds:
                raise RenderingSlowError from exc
            if rendering.is_hasty:
                with self._child.lock:
                    self._drop_idle()  # which may have ended with it
            raise TokenizerLostError("the process that rendered the conversation has ended") from exc
        finally:
            self._give_back(connection, is_sound)

    def _connection(self, seconds: float, is_hasty: bool) -> Connection:
        with self._child.held():
            return self._idle.pop() if is_hasty and self._idle else self._found_copy(seconds)

    def _found_copy(self, seconds: float) -> Connection:
        """As `_copy`, where it is noted whether there is one."""
        with self._child.noted():
            return self._copy(seconds)

    def _look(self) -> None:
        self._found_copy(SHORT_SECONDS).close()

    def _give_back(self, connection: Connection, is_sound: bool) -> None:
        with self._child.lock:
            if is_sound and not self._child.is_closed:
                self._idle.append(connection)
            else:
                connection.close()

    def _copy(self, seconds: float) -> Connection:
        """Have the process make a copy of itself; return what leads to it. A process that does not is replaced."""
        for number in range(3):
            try:
                return self._made_copy(seconds)
            except EOFError:
                if number:  # else the copy alone may have been killed
                    self._start_again()
            except OSError:
                self._start_again()
        raise TokenizerLostError(f"{_NAME} can't be reached")

    def _made_copy(self, seconds: float) -> Connection:
        connection, theirs = connected(_NAME, PATIENCE * seconds + _LATE_S)
        try:
            with theirs:
                self._child.send_descriptor(theirs.fileno())
            connection.recv_bytes(len(READY))
        except BaseException:
            connection.close()
            raise
        return connection

    def _start_again(self) -> None:
        self._child.kill()  # if it has not ended, it is stopped, or there may be no more processes
        self._drop_idle()
        self._child.start_again()

    def _prepare_anew(self) -> None:
        assert self._source is not None, "it was prepared before"
        self._prepared(self._source)

    def _prepared(self, source: TemplateSource) -> frozenset[str]:
        connection = self._child.connection
        try:
            connection.send(source)
            answer = connection.recv_bytes(_MAX_ANSWER)
        except (OSError, EOFError) as exc:
            if -self._child.kill() in LATE:
                raise TokenizerError(f"chat template: preparing it took more than {MAX_SECONDS:g} s") from exc
            raise TokenizerLostError(f"{_NAME} has ended") from exc
        if not answer.startswith(b"["):
            unpacked(answer)  # raises what it is
        return frozenset(cast("list[str]", json.loads(answer)))

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class HastyConversations:
    """Renders what others wait for; see `Conversations.hasty`."""

    def __init__(self, process: TemplateProcess) -> None:
        self._process = process

    @property
    def names(self) -> frozenset[str]:
        """Names that the template asks for and does not set itself."""
        return self._process.names

    def hasty(self) -> HastyConversations:
        """Return this."""
        return self

    def text(self, conversation: Conversation) -> ChatText:
        """Return a conversation as text; raises `RenderingSlowError` too, also where the text is long to encode."""
        found = self._process.render(Rendering(conversation, SHORT_SECONDS, is_hasty=True))
        if len(found.text) > 2 * LONG_CHARS:
            raise RenderingSlowError
        return found
