"""A block's file: a header with what it is and the checksum of its bytes, and these bytes."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

from unicorn_async.errors import CacheError
from unicorn_async.scheduler.kept_blocks import BlockName

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"unicorn kv block"
_VERSION = 1
_HEADER = struct.Struct("<16sIIQ16s16s")  # magic, version, group, bytes, key, digest
_KEY_BYTES, _DIGEST_BYTES = 16, 16
_NAME = re.compile(rf"(\d{{1,3}})-([0-9a-f]{{{2 * _KEY_BYTES}}})\.kv")
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
PART_SUFFIX = ".part"


def file_name(name: BlockName) -> str:
    """Return what a block's file is called."""
    return f"{name.group}-{name.key.hex()}.kv"


def name_of(file: str) -> BlockName | None:
    """Return which block a file is of; None where it is of none."""
    found = _NAME.fullmatch(file)
    return None if found is None else BlockName(int(found[1]), bytes.fromhex(found[2]))


def file_nbytes(nbytes: int) -> int:
    """Return the size of the file of a block of so many bytes."""
    return _HEADER.size + nbytes


def write_block(path: Path, name: BlockName, data: memoryview, used_ns: int) -> None:
    """Write a block's file, used at `used_ns`, which is there when it is whole.

    Raises:
        OSError: it can't be written; nothing is left of it.
    """
    part = path.with_name(path.name + PART_SUFFIX)
    header = _HEADER.pack(_MAGIC, _VERSION, name.group, len(data), name.key, _digest(name, data))
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN_FLAGS, 0o600)
        try:
            for piece in (memoryview(header), data):
                left = piece
                while left:
                    left = left[os.write(file, left) :]
            with contextlib.suppress(OSError):  # its order among others is lost then, and no more
                os.utime(file, ns=(used_ns, used_ns))
        finally:
            os.close(file)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_block(path: Path, name: BlockName, into: memoryview) -> None:
    """Read a block's file.

    Raises:
        OSError: it can't be read.
        CacheError: it is not what was written.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _OPEN_FLAGS)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size != file_nbytes(len(into)):
            raise CacheError(f"a block's file: expected {file_nbytes(len(into))} bytes, got {found.st_size}")
        header = os.read(file, _HEADER.size)
        left = into
        while left:
            count = os.readv(file, [left])
            if not count:
                raise CacheError(f"a block's file ends {len(left)} bytes early")
            left = left[count:]
    finally:
        os.close(file)
    if header != _HEADER.pack(_MAGIC, _VERSION, name.group, len(into), name.key, _digest(name, into)):
        raise CacheError("a block's file: its bytes are not those of its checksum")


def _digest(name: BlockName, data: memoryview) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES, key=name.key).digest()
