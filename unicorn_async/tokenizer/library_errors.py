"""What the tokenizers library raises, as errors of this package."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerError, UnicornError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PANIC = "PanicException"  # of Rust; it can't be imported, and is no Exception


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Make what the library raises in the block a TokenizerError about `what`; a damaged vocabulary makes it panic."""
    try:
        yield
    except UnicornError:
        raise
    except Exception as exc:  # the library raises no narrower class
        raise TokenizerError(f"{what}: {exc}") from exc
    except BaseException as exc:
        if type(exc).__name__ != _PANIC:
            raise
        raise TokenizerError(f"{what}: the vocabulary contradicts itself ({exc})") from exc
