"""What huggingface_hub raises, as this package tells it."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unicorn_async.errors import DownloadError, UnicornError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.checkpoint.hub import HubName

_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
_AGAIN = "what has come is kept, pull it again to go on"


@contextmanager
def library_errors(name: HubName, endpoint: str, cache: Path) -> Iterator[None]:
    """Turn every error of the library, and of those below it, into a `DownloadError` about a model."""
    try:
        yield
    except DownloadError as exc:
        if str(exc).startswith(f"{name}: "):
            raise
        raise DownloadError(f"{name}: {exc}") from exc
    except UnicornError:  # of who looked at what came
        raise
    except Exception as exc:  # which of them it raises changes with the library that it speaks HTTP with
        raise DownloadError(f"{name}: {_reason(exc, name, endpoint, cache)}") from exc


def _reason(exc: Exception, name: HubName, hub: str, cache: Path) -> str:
    from huggingface_hub import errors

    if isinstance(exc, errors.GatedRepoError):
        return f"access has to be asked for at {hub}/{name.repo}; then log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(exc, errors.RepositoryNotFoundError):
        return f"no such repository at {hub}, or a private one: for those log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(exc, errors.HfHubHTTPError):
        status = "with an error" if exc.response is None else exc.response.status_code
        return f"{hub} answers {status}; {_AGAIN}"
    if isinstance(exc, OSError) and exc.errno == errno.ENOSPC:
        return f"no room is left in {cache}; {_AGAIN} when there is some"
    if isinstance(exc, errors.LocalEntryNotFoundError) or "Connect" in type(exc).__name__:
        return f"{hub} can't be reached ({first_line(exc.__cause__ or exc)}); {_AGAIN}"
    if isinstance(exc, OSError) and exc.errno in _UNWRITABLE:
        return f"nothing can be written in {cache} ({exc.strerror})"
    return f"{first_line(exc)}; {_AGAIN}"


def first_line(exc: BaseException) -> str:
    """Return what an error is, as far as one line has it: the library's go on for several."""
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__
