"""Whether what comes of a file is the beginning of weights, or what a network in between sent in their place. Pure."""

from __future__ import annotations

from unicorn_async.checkpoint.gguf.files import SUFFIX as GGUF_SUFFIX
from unicorn_async.checkpoint.gguf.header import MAGIC
from unicorn_async.checkpoint.safetensors import HEADER_LENGTH_BYTES

START_BYTES = HEADER_LENGTH_BYTES + 1  # that are looked at
_SAFETENSORS_SUFFIX = ".safetensors"


def why_wrong(name: str, nbytes: int, start: bytes) -> str | None:
    """Return why the first START_BYTES can't be those of a file of `nbytes`; None if they can, or there are fewer.

    A file that is no weights by its name is not looked at.
    """
    is_gguf = name.endswith(GGUF_SUFFIX)
    if len(start) < START_BYTES or not (is_gguf or name.endswith(_SAFETENSORS_SUFFIX)):
        return None
    length, begins = int.from_bytes(start[:HEADER_LENGTH_BYTES], "little"), start[HEADER_LENGTH_BYTES:START_BYTES]
    found, expected = (start[: len(MAGIC)], MAGIC) if is_gguf else (begins, b"{")
    if found != expected or (not is_gguf and length > nbytes - HEADER_LENGTH_BYTES):
        if start.startswith(b"<"):
            return f"something else came in its place, a web page by its beginning {start!r}"
        if found == expected:
            return f"expected a header within its {nbytes} bytes, got one of {length}"
        return f"expected {expected!r} where its header begins, got {found!r}"
    return None
