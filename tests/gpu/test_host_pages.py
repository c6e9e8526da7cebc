"""Pages of the host for several devices."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.host_pages import PAGE_BYTES, SharedPages, return_freed_memory


@pytest.mark.parametrize("alignment", [0, 64, PAGE_BYTES, 1 << 16])
def test_pages_are_whole_aligned_and_zero(alignment: int) -> None:
    pages = SharedPages(PAGE_BYTES + 1, alignment=alignment)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages.view))
    assert address % max(alignment, PAGE_BYTES) == 0
    assert pages.view.nbytes == -(-(PAGE_BYTES + 1) // max(alignment, PAGE_BYTES)) * max(alignment, PAGE_BYTES)
    assert not any(pages.view)
    pages.close()
    pages.close()


def test_pages_are_private_and_anonymous_and_not_for_child_processes() -> None:
    """Others amdgpu does not import; `dc` is the flag of memory that a fork leaves out."""
    pages = SharedPages(1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages.view))
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    mapping = next(line for line in lines if "-" in line.split()[0] and _holds(line.split()[0], address))
    flags = next(line for line in lines if line.startswith("VmFlags"))
    assert mapping.split()[1].endswith("p") and mapping.split()[4] == "0"
    assert "dc" in flags.split()
    pages.close()


def test_memory_that_was_freed_below_something_in_use_is_returned() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("glibc alone can be told to")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size, count = 64 << 10, 1000  # small enough to come out of an arena
    pieces = [libc.malloc(size) for _ in range(count)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[:-1]:
        libc.free(piece)
    kept = _resident_bytes()
    return_freed_memory()
    assert kept - _resident_bytes() > 0.8 * size * count
    libc.free(pieces[-1])


def test_a_c_library_that_keeps_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_async.gpu.host_pages._libc", lambda: object())
    return_freed_memory()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def _holds(span: str, address: int) -> bool:
    start, _, end = span.partition("-")
    return int(start, 16) <= address < int(end, 16)


def test_pages_that_can_not_be_had_are_an_error_with_their_size() -> None:
    with pytest.raises(OutOfMemoryError, match=r"bytes of pages"):
        SharedPages(1 << 60)
