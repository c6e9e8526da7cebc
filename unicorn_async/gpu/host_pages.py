"""Pages of host memory: shared by devices, huge ones, which cost a fault in 2 MiB and not in 4 KiB, and freed ones."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import TYPE_CHECKING

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_BYTES = mmap.PAGESIZE
HUGE_PAGE_BYTES = 2 << 20  # on x86-64 and on ARM with pages of 4 KiB; elsewhere the advice is merely less apt
_HUGE_PAGE, _POPULATE_READ = 14, 22  # MADV_*
_MAP_FAILED = ctypes.c_void_p(-1).value


def prefer_huge_pages(memory: memoryview) -> None:
    """Ask for huge pages in ordinary writable memory that nobody has touched yet; a kernel without them ignores it."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = aligned(address, PAGE_BYTES)
    end = (address + memory.nbytes) // PAGE_BYTES * PAGE_BYTES
    if end > start:
        _libc().madvise(start, end - start, _HUGE_PAGE)


class SharedPages:
    """Zeroed pages for several devices to import; close them when no device has them any more.

    They are private and anonymous, because amdgpu imports no others, and a child process does not get them: it would
    take them from the devices by copying them.
    """

    def __init__(self, nbytes: int, *, alignment: int = PAGE_BYTES) -> None:
        """Map them; start and size become multiples of a page and of `alignment`.

        Raises:
            OutOfMemoryError: there is not so much memory.
        """
        alignment = max(alignment, PAGE_BYTES)
        size = aligned(nbytes, alignment)
        spare = alignment - PAGE_BYTES  # the mapping begins at a page
        try:
            pages = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as exc:
            raise OutOfMemoryError(f"{size + spare:,} bytes of pages: {exc}") from exc
        pages.madvise(mmap.MADV_DONTFORK)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(pages)) % alignment
        self.view = memoryview(pages)[start : start + size]

    def close(self) -> None:
        """Give them back, with the last view of them that others have; a second call does nothing."""
        self.view = memoryview(b"")


class FilePages:
    """Brings parts of a file into the page cache, in huge pages where the file system has them.

    The file is mapped once, because mapping makes all other threads that touch new memory wait; any thread may `fetch`,
    and nobody any more once it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self._size = os.fstat(descriptor).st_size
        address = None
        if self._size:
            address = _libc().mmap(None, self._size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        self._address = None if address == _MAP_FAILED else address
        if self._address is not None and _libc().madvise(self._address, self._size, _HUGE_PAGE):
            self.close()

    def fetch(self, offset: int, nbytes: int) -> bool:
        """Bring in the huge pages that a part of the file lies in; it blocks on the disk.

        A page is asked for in each of them. In a mapping that wants huge pages, the kernel reads the whole huge page
        around it, and goes on with the next. Returns whether the kernel takes such advice (Linux 5.14, with transparent
        huge pages) and all was read; who reads the file afterwards is told what is wrong with it.
        """
        if self._address is None:
            return False
        libc, first = _libc(), offset // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        places = range(first, min(offset + nbytes, self._size), HUGE_PAGE_BYTES)
        return not any(libc.madvise(self._address + place, PAGE_BYTES, _POPULATE_READ) for place in places)

    def close(self) -> None:
        """Unmap the file; a second call does nothing."""
        address, self._address = self._address, None
        if address is not None:
            _libc().munmap(address, self._size)


def num_resident(descriptor: int, offsets: Iterable[int]) -> int:
    """Count the offsets of a file whose byte is in the page cache; a file system that can't say has none.

    It never waits for a disk, and other threads of the interpreter wait for it: each call takes a microsecond or two,
    and to have Python's lock back from a busy thread a thousand times as long.
    """
    byte = ctypes.create_string_buffer(1)
    part = _Part(ctypes.addressof(byte), 1)
    read = getattr(_quick_libc(), "preadv2", None)
    if read is None:  # an old C library
        return sum(_is_resident(descriptor, offset) for offset in offsets)
    return sum(read(descriptor, ctypes.byref(part), 1, offset, os.RWF_NOWAIT) == 1 for offset in offsets)


def _is_resident(descriptor: int, offset: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def return_freed_memory() -> None:
    """Give the system the pages that the C library keeps of freed memory; does nothing where it has no such call.

    glibc keeps what is freed below something that is in use, in an arena for every few threads. A load has dozens of
    threads, and so have drivers and compilers: hundreds of megabytes stay that no later load takes from the same arena.
    It takes milliseconds, and who allocates meanwhile waits for it: for a thread, and for moments like a closing.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


class _Part(ctypes.Structure):
    """struct iovec: memory that is read into."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


@cache
def _quick_libc() -> ctypes.PyDLL:
    """The C library, for calls that return at once: they keep the interpreter's lock."""
    libc = ctypes.PyDLL(None)
    if hasattr(libc, "preadv2"):
        libc.preadv2.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int]
        libc.preadv2.restype = ctypes.c_ssize_t
    return libc


@cache
def _libc() -> ctypes.CDLL:
    """The C library, whose calls let other threads of the interpreter run."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc
