"""ELF files as a compiler for AIE would write them, with functions of any size and nothing in them."""

from __future__ import annotations

import struct

_HEADER_BYTES, _SECTION_BYTES, _SEGMENT_BYTES = 52, 40, 32
_LOAD = 1
_PROGBITS, _SYMTAB, _STRTAB, _NOBITS = 1, 2, 3, 8
_ALLOC, _EXEC = 2, 4


def elf(
    functions: dict[str, int], *, constants: int = 0, zeros: int = 0, segments: tuple[tuple[int, int, int], ...] = ()
) -> bytes:
    """A file with these functions, bytes of constants, bytes that are zero at the start, and a comment.

    A linked one has segments, too: their places, sizes and flags.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for name in functions)
    symbols, place = bytes(16), 1
    for name, size in functions.items():
        symbols += struct.pack("<IIIBBH", place, 0, size, 0x12, 0, 1)
        place += len(name) + 1
    sections = [  # type, flags, content, size, link
        (0, 0, b"", 0, 0),
        (_PROGBITS, _ALLOC | _EXEC, bytes(sum(functions.values())), None, 0),
        (_PROGBITS, _ALLOC, bytes(constants), None, 0),
        (_NOBITS, _ALLOC | 1, b"", zeros, 0),
        (_PROGBITS, 0, b"made by nobody", None, 0),
        (_SYMTAB, 0, symbols, None, 6),
        (_STRTAB, 0, names, None, 0),
    ]
    body, table = b"", b""
    for kind, flags, content, size, link in sections:
        offset = _HEADER_BYTES + len(body)
        nbytes = len(content) if size is None else size
        table += struct.pack("<IIIIIIIIII", 0, kind, flags, 0, offset, nbytes, link, 0, 1, 0)
        body += content
    segments_at = _HEADER_BYTES + len(body)
    for place, nbytes, segment_flags in segments:
        body += struct.pack("<IIIIIIII", _LOAD, _HEADER_BYTES, 0, place, 0, nbytes, segment_flags, 4)
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    start = _HEADER_BYTES + len(body)
    header = (1, 264, 1, 0, segments_at if segments else 0, start, 0, _HEADER_BYTES)
    fields = (*header, _SEGMENT_BYTES, len(segments), _SECTION_BYTES, len(sections), 0)
    return struct.pack("<16sHHIIIIIHHHHHH", ident, *fields) + body + table
