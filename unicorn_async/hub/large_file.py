"""A large file from the hub, which goes on where it was cut off, whatever ended the download before.

The library goes on within one call, keeps nothing of a call that failed, and takes a response by pieces of 10 MB, of
which a connection that is cut loses the last. So the response is read here, as it comes, and written to a place in its
cache that the next call finds again. What has come can be read at once, and its digest is computed beside that.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlparse

from unicorn_async.checkpoint.partial_file import PartialFile
from unicorn_async.errors import DownloadError, UnicornError
from unicorn_async.hub.beginning import START_BYTES, why_wrong
from unicorn_async.hub.library_errors import first_line
from unicorn_async.hub.received import Received

if TYPE_CHECKING:
    from types import TracebackType
    from typing import BinaryIO

    from huggingface_hub.utils.tqdm import tqdm

    from unicorn_async.hub.needed import RepoFile

SMALLEST = 16 << 20  # bytes; smaller ones are not worth it
LARGEST = 50_000_000_000  # bytes, of what the hub gives by plain HTTP; larger ones the library brings by Xet
HEAD_BYTES = 32 << 20  # of a file, which have what describes it: a vocabulary of 262,144 tokens takes 10 MB
PARTIAL_SUFFIX = ".unicorn.incomplete"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASH_BYTES = 1 << 20
_TIMEOUT_S = 10.0
_ATTEMPTS = 5  # that bring nothing, one after the other
_WAIT_S = 1.0  # between them

_log = logging.getLogger(__name__)


def can_go_on(file: RepoFile) -> bool:
    """Whether a file is one for `LargeFile`."""
    return file.sha256 is not None and _SHA256.fullmatch(file.sha256) is not None and SMALLEST <= file.nbytes <= LARGEST


def bytes_there(folder: Path, file: RepoFile) -> int:
    """Return how much of a file is there already, in the `folder` of its repository."""
    try:
        return _partial(folder, file).stat().st_size
    except FileNotFoundError:
        return 0


def link_blob(folder: Path, revision: str, file: RepoFile) -> bool:
    """Put a file that another revision has brought in its place; whether it is there now."""
    blob, link = folder / "blobs" / str(file.sha256), folder / "snapshots" / revision / file.name
    if not blob.exists():
        return False
    _link(blob, link)
    return True


class LargeFile:
    """A file that `can_go_on`, on its way to its place in the `folder` of its repository; close it.

    `content` is what is there of it. One thread brings it; `stop` is for any.

    Raises:
        DownloadError: another process brings it.
    """

    def __init__(
        self,
        url: str,
        file: RepoFile,
        folder: Path,
        revision: str,
        *,
        turn: int = 0,
        shows_bar: bool = True,
        is_stopped: threading.Event | None = None,
    ) -> None:
        """`is_stopped` is set by `stop`, and may be by others."""
        self.file = file
        self._url = url
        self._shows_bar = shows_bar
        self._blob = folder / "blobs" / str(file.sha256)
        self._link = folder / "snapshots" / revision / file.name
        self._path = _partial(folder, file)
        self._is_stopped = threading.Event() if is_stopped is None else is_stopped
        self._is_wrong = False
        self._begins_well = False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._opened = self._path.open("ab", buffering=0)
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._opened.fileno()).st_size > file.nbytes:
                self._opened.truncate(0)
            self.content = PartialFile(self._path, file.nbytes, str(file.sha256), turn=turn)
            self._digest = _Digest(self.content)
            self._digest.start()
        except BaseException as exc:
            self._opened.close()
            if isinstance(exc, BlockingIOError):
                raise DownloadError(f"{file.name} is being brought by another process") from exc
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def receive(self, end: int) -> None:
        """Append the file's bytes up to an end, as long as any come: a store's address is good for a while alone.

        Raises:
            DownloadError: the hub has a file of another size, what is there is no beginning of weights, or this was
                stopped. Others: those of the library.
        """
        self.check_begins()
        end = min(end, self.file.nbytes)
        if self.content.num_there >= end:
            return
        num_failed = 0
        with self._bar() as bar:
            while (start := self.content.num_there) < end:
                try:
                    self._append(start, end, bar)
                except Exception as exc:  # whatever the library raises: it is told once nothing comes any more
                    there = self.content.num_there
                    num_failed = 0 if there > start else num_failed + 1
                    is_answer = isinstance(exc, (OSError, UnicornError))  # of the hub or the disk, not of a network
                    if (
                        self._is_wrong
                        or self._is_stopped.is_set()
                        or num_failed == _ATTEMPTS
                        or (is_answer and num_failed)
                    ):
                        raise
                    _log.warning("%s: %s; it goes on at byte %d", self.file.name, first_line(exc), there)
                    if num_failed:
                        self._is_stopped.wait(_WAIT_S)

    def begun(self) -> BinaryIO:
        """Open what is there by now, as a file that ends there; raises OSError."""
        return self._path.open("rb")

    def check_begins(self) -> None:
        """Refuse what is there if it can't be weights, as a power cut or a network in between leaves it.

        No model opens with that, so its digest would never be known: each start would go on from the same bytes.

        Raises:
            DownloadError: it is something else, and is removed when this is closed.
        """
        if self._begins_well or self.content.num_there < START_BYTES:
            return
        with self.begun() as begun:
            reason = why_wrong(self.file.name, self.file.nbytes, begun.read(START_BYTES))
        if reason is not None:
            raise self.refused(reason)
        self._begins_well = True

    def settle(self) -> None:
        """Receive the rest, compare all of it with what the hub lists, and put it in its place; raises as `receive`.

        Raises:
            DownloadError: it is something else, and is removed when this is closed.
        """
        self.receive(self.file.nbytes)
        if (digest := self._digest.result()) != self.file.sha256:
            raise self.refused(f"expected sha256 {self.file.sha256}, got {digest}")
        _link(self._blob, self._link)  # who waits for the file finds it by its name
        self.content.settle(self._blob)

    def refused(self, reason: str) -> DownloadError:
        """Return the error that it is something else than the hub lists; it is removed when this is closed."""
        self._is_wrong = True
        return DownloadError(f"{self.file.name}: {reason}; it was removed, pull it again")

    def stop(self) -> None:
        """Have what is received now end with the next bytes that come."""
        self._is_stopped.set()

    def close(self) -> None:
        """Let the file be brought by others; what has come stays unless it is wrong, and who waits for more is told."""
        self.content.fail(DownloadError(f"{self.file.name}: the download was ended; what has come is kept"))
        if self._is_wrong:
            self._path.unlink(missing_ok=True)
        self._opened.close()
        self._digest.stop()

    def _bar(self) -> tqdm:
        from huggingface_hub.utils.tqdm import tqdm

        from unicorn_async.hub.hidden_bar import HiddenBar

        return (tqdm if self._shows_bar else HiddenBar)(
            desc=Path(self.file.name).name,
            total=self.file.nbytes,
            initial=self.content.num_there,
            unit="B",
            unit_scale=True,
            disable=None,  # unless standard error is a terminal
        )

    def _append(self, start: int, end: int, bar: tqdm) -> None:
        from huggingface_hub import constants, get_hf_file_metadata
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public by its documentation alone
            build_hf_headers,
            hf_raise_for_status,
            http_stream_backoff,
        )

        file = self.file
        found = get_hf_file_metadata(self._url, timeout=_TIMEOUT_S)
        if found.size not in (None, file.nbytes):
            raise DownloadError(f"{file.name}: expected {file.nbytes} bytes, the hub has {found.size}")
        headers = build_hf_headers() | {"accept-encoding": "identity"}  # bytes are counted as they are in the file
        if urlparse(found.location).netloc != urlparse(self._url).netloc:
            headers.pop("authorization", None)  # a signed address of a store elsewhere, which the token is not for
        if start > 0 or end < file.nbytes:
            headers["Range"] = f"bytes={start}-{end - 1 if end < file.nbytes else ''}"
        with http_stream_backoff(
            "GET",
            found.location,
            headers=headers,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            retry_on_exceptions=(),
            retry_on_status_codes=(408, 429),
        ) as response:
            hf_raise_for_status(response)
            starts_anew = response.status_code == 200  # a server that knows no ranges
            received = Received(self._opened, self.content, self._is_stopped, 0 if starts_anew else start, end)
            for piece in response.iter_bytes():  # as they come, for none to be lost
                received.write(piece)
                self.check_begins()
                bar.update(self.content.num_there - bar.n)
        if self.content.num_there < end:
            raise EOFError(f"{file.name}: the answer ended before byte {end}")


class _Digest(threading.Thread):
    """Computes the digest of a file as it comes."""

    def __init__(self, content: PartialFile) -> None:
        super().__init__(name="unicorn-digest", daemon=True)
        self._content = content
        self._digest = hashlib.sha256()
        self._error: Exception | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Have it end with the part that it reads, whose digest nobody wants."""
        self._is_stopped = True

    def run(self) -> None:
        try:
            with self._content.open() as opened:
                while not self._is_stopped and (part := opened.read(_HASH_BYTES)):
                    self._digest.update(part)
        except Exception as exc:  # of any kind: the digest of a part is not that of the file, which would be removed
            self._error = exc

    def result(self) -> str:
        """Return the digest once all of the file has come; raises what ended the download, or its reading."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as opened:
        while part := opened.read(_HASH_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _partial(folder: Path, file: RepoFile) -> Path:
    return folder / "blobs" / f"{file.sha256}{PARTIAL_SUFFIX}"


def _link(blob: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
