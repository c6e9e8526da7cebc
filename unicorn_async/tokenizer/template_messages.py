"""What a process that runs a stranger's template is asked; what it answers is text, of which no objects are made."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import RequestError, TokenizerError
from unicorn_async.tokenizer.conversation import ChatText

if TYPE_CHECKING:
    from unicorn_async.errors import UnicornError
    from unicorn_async.tokenizer.conversation import Conversation

READY = b"+"  # a copy is there
LATE = (signal.SIGPROF, signal.SIGALRM)  # which end a process that takes too long
_TEXT, _REFUSED, _FAILED = b"T", b"R", b"F"
_MAX_MESSAGE = 4096


class Rendering(NamedTuple):
    """A conversation, and how many seconds of the processor it may take.

    Behind one that others wait for, more come to the same process.
    """

    conversation: Conversation
    seconds: float
    is_hasty: bool


def packed(found: ChatText | UnicornError) -> bytes:
    """Return the bytes of a text with its mark, or of an error."""
    if isinstance(found, ChatText):
        return _TEXT + (found.mark + found.text).encode("utf-8", "surrogatepass")
    kind = _REFUSED if isinstance(found, RequestError) else _FAILED
    return kind + str(found)[:_MAX_MESSAGE].encode("utf-8", "replace")


def unpacked(answer: bytes) -> ChatText:
    """Return the text.

    Raises:
        RequestError, TokenizerError: the answer is an error.
        ValueError: it is no answer.
    """
    kind, body = answer[:1], answer[1:]
    if kind == _TEXT:
        text = body.decode("utf-8", "surrogatepass")
        return ChatText(text[1:], text[:1])
    if kind == _REFUSED:
        raise RequestError(body.decode("utf-8", "replace"))
    if kind == _FAILED:
        raise TokenizerError(body.decode("utf-8", "replace"))
    raise ValueError(f"an answer of the kind {kind!r}")
