"""What a server's process may hold: files for its connections, and no memory that it has freed."""

from __future__ import annotations

import ctypes
import resource

_OTHER_FILES = 512  # the model's, devices and the tokenizer's process
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE_BYTES = 1 << 20


def make_room_for(num_connections: int) -> int:
    """Raise the process's own limit, as far as it may: a connection too many would fail whatever else opens a file.

    Return for how many connections there is room then; where the limit is low, half of it is for other files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(num_connections, max(wanted - _OTHER_FILES, wanted // 2))


def return_large_blocks() -> None:
    """Have blocks of a mebibyte and more go back to the system as soon as they are freed.

    By itself glibc keeps blocks as large as the largest that was freed: some huge answers would stay for ever.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
