"""Text to token ids and back: tokenizer.json, chat templates, incremental decoding, stop strings.

A name's module is imported when the name is first asked for: the process of a chat template needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.tokenizer.apart import LONG_CHARS
    from unicorn_async.tokenizer.conversation import RenderingSlowError
    from unicorn_async.tokenizer.message import ChatMessage, ToolCall
    from unicorn_async.tokenizer.stop_checker import StopChecker
    from unicorn_async.tokenizer.stream_decoder import StreamDecoder
    from unicorn_async.tokenizer.tokenizer import Tokenizer

_MODULES = {
    "LONG_CHARS": "apart",
    "ChatMessage": "message",
    "RenderingSlowError": "conversation",
    "StopChecker": "stop_checker",
    "StreamDecoder": "stream_decoder",
    "Tokenizer": "tokenizer",
    "ToolCall": "message",
}
__all__ = ["LONG_CHARS", "ChatMessage", "RenderingSlowError", "StopChecker", "StreamDecoder", "Tokenizer", "ToolCall"]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
