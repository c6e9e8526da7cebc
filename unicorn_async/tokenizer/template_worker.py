"""The process that has a chat template: it prepares it, and makes copies of itself, which render.

A template is a stranger's program. It can't be interrupted within an operation, and may take all memory that there is;
so it has a process that the kernel ends when its time is over, and whose memory is bounded.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerError, UnicornError
from unicorn_async.tokenizer.local_conversations import LocalConversations
from unicorn_async.tokenizer.served_end import ending_with
from unicorn_async.tokenizer.template_limits import MAX_BYTES, MAX_SECONDS, PATIENCE
from unicorn_async.tokenizer.template_messages import LATE, READY, packed

if TYPE_CHECKING:
    from unicorn_async.tokenizer.conversation import ChatText, Conversation, TemplateSource
    from unicorn_async.tokenizer.template_messages import Rendering

_NICENESS = 10
_MAX_GROWTH_KIB = 64 << 10  # of a copy that renders more than one conversation


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it, or is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for copies
    for number in LATE:  # by which the kernel ends the process, whatever it is at
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    most = MAX_BYTES if most == resource.RLIM_INFINITY else min(most, MAX_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        source: TemplateSource = connection.recv()
        _limit(MAX_SECONDS)
        try:
            conversations = LocalConversations(source)
            names = sorted(conversations.names)
        except UnicornError as exc:
            connection.send_bytes(packed(exc))
            return
        _limit(0)
        connection.send_bytes(json.dumps(names).encode())
        gc.collect()
        gc.freeze()
        _make_copies(connection, conversations)


def _limit(seconds: float) -> None:
    """Have the kernel end this process after so many seconds of the processor, or some more by the clock; 0 = never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)


def _make_copies(connection: Connection, conversations: LocalConversations) -> None:
    """For every socket that comes, have a copy of this process render what is asked there."""
    ours = socket.socket(fileno=connection.fileno())
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            if not data:
                return
            for descriptor in descriptors:
                _make_copy(descriptor, connection, conversations)
    finally:
        ours.detach()


def _make_copy(descriptor: int, connection: Connection, conversations: LocalConversations) -> None:
    try:
        is_copy = not os.fork()
    except OSError:  # as many processes as there may be: the other end sees that nobody serves it
        is_copy = False
    if not is_copy:
        os.close(descriptor)
        return
    try:  # no error may lead out of here: the copy would go on as this process
        connection.close()
        with Connection(descriptor) as other:
            _render(other, conversations)
    finally:
        os._exit(0)


def _render(connection: Connection, conversations: LocalConversations) -> None:
    """Render what comes; a copy that has become large ends, for its memory's sake."""
    connection.send_bytes(READY)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + _MAX_GROWTH_KIB:
        rendering: Rendering = connection.recv()
        _limit(rendering.seconds)
        if not rendering.is_hasty:
            os.nice(_NICENESS)
        with ending_with(connection):
            answer = packed(_rendered(conversations, rendering.conversation))
        connection.send_bytes(answer)
        _limit(0)


def _rendered(conversations: LocalConversations, conversation: Conversation) -> ChatText | UnicornError:
    try:
        return conversations.text(conversation)
    except UnicornError as exc:
        return exc
    except (MemoryError, RecursionError) as exc:  # with what the template got as much as with what it made of that
        return TokenizerError(f"chat template: {type(exc).__name__}")
