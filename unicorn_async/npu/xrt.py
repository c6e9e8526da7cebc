"""The door to pyxrt: its import, and its errors as ours.

pyxrt comes with XRT, not from a package index, and is built for one version of Python. It is imported when an NPU is
asked for and not before.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBusyError, NpuContextLostError, NpuError, NpuUnavailableError, OutOfMemoryError
from unicorn_async.npu.memlock import RAISE_HINT

if TYPE_CHECKING:
    from collections.abc import Iterator

_ERRNO = re.compile(r"\berr(?:no)?\s*=\s*(-?\d+)")
_NEW_CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_NO_DEVICE = (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL)
_LOST = (errno.EIO, errno.ETIMEDOUT, errno.ETIME)


def require_pyxrt() -> None:
    """Import pyxrt.

    Raises:
        NpuUnavailableError: it is not there, or does not fit this Python.
    """
    try:
        import pyxrt  # noqa: F401
    except ImportError as exc:
        raise NpuUnavailableError(
            f"pyxrt can't be imported: {exc}; it is installed with XRT, for one version of Python: `unicorn npu doctor`"
            " says which is there, and how this one gets it"
        ) from exc


def opening_failure(address: str) -> str | None:
    """Return why pyxrt can't be imported, or does not open the device at this address of the PCI bus; None if it does.

    The device is closed again.
    """
    try:
        import pyxrt

        pyxrt.device(address)
    except (ImportError, MemoryError, RuntimeError, OSError, ValueError, TypeError, IndexError) as exc:
        return str(exc) or type(exc).__name__
    return None


def address_capsule(view: memoryview) -> object:
    """Return the address of writable memory as pyxrt takes a void pointer; it keeps nothing alive."""
    capsule: object = _NEW_CAPSULE(ctypes.addressof(ctypes.c_char.from_buffer(view)), None, None)
    return capsule


@contextlib.contextmanager
def xrt_errors(what: str) -> Iterator[None]:
    """Turn what pyxrt raises inside into an error of ours that says `what` was tried.

    Raises:
        NpuBusyError: ENOSPC. OutOfMemoryError: ENOMEM or EAGAIN, which a memlock limit gives. NpuUnavailableError: the
        device is not there, or may not be opened. NpuContextLostError: EIO, ETIMEDOUT, or ETIME, which is firmware that
        has stopped. NpuError: all else.
    """
    try:
        yield
    except MemoryError as exc:
        raise OutOfMemoryError(f"{what}: {exc or 'out of memory'}") from exc
    except (RuntimeError, OSError, ValueError, TypeError, IndexError) as exc:
        raise _error(what, exc) from exc


def error_number(exc: BaseException) -> int | None:
    """Return the errno that an exception of XRT tells in its text, or None."""
    if isinstance(exc, OSError) and exc.errno is not None:
        return exc.errno
    return told_number(str(exc))


def told_number(text: str) -> int | None:
    """Return the errno that XRT's words tell, by its number or by its name, or None."""
    found = _ERRNO.search(text)
    if found:
        return abs(int(found.group(1)))
    known = (errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.ENODEV, errno.EAGAIN, *_LOST)
    return next((number for number in known if os.strerror(number) in text), None)


def _error(what: str, exc: Exception) -> Exception:
    number = error_number(exc)
    text = f"{what}: {exc}"
    if number == errno.ENOSPC:
        return NpuBusyError(
            f"{text}; the NPU's contexts or columns are used up: end other programs that use it, and check that the"
            " kernels were built for this chip"
        )
    if number in (errno.ENOMEM, errno.EAGAIN):
        return OutOfMemoryError(f"{text}; if memory is free, more of it has to be allowed to be locked: {RAISE_HINT}")
    if number == errno.EACCES:
        return NpuUnavailableError(f"{text}; the user has to be in the group render")
    if number in _NO_DEVICE and "CREATE_HWCTX" in text:
        return NpuUnavailableError(
            f"{text}; Linux's own driver says this too where others use up the NPU's contexts or columns: end other"
            " programs that use it; `unicorn npu doctor` looks for other reasons"
        )
    if number in _NO_DEVICE:
        return NpuUnavailableError(f"{text}; `unicorn npu doctor` looks for the reason")
    if number in _LOST:
        return NpuContextLostError(f"{text}; the driver gave up on the context")
    return NpuError(text)
