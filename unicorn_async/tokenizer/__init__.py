"""Text to token ids and back: tokenizer.json, chat templates, incremental decoding, stop strings."""

from __future__ import annotations

from unicorn_async.tokenizer.apart import LONG_CHARS
from unicorn_async.tokenizer.message import ChatMessage, ToolCall
from unicorn_async.tokenizer.stop_checker import StopChecker
from unicorn_async.tokenizer.stream_decoder import StreamDecoder
from unicorn_async.tokenizer.tokenizer import Tokenizer

__all__ = ["LONG_CHARS", "ChatMessage", "StopChecker", "StreamDecoder", "Tokenizer", "ToolCall"]
