"""A large file from the hub, which goes on where it was cut off, whatever ended the download before.

The library goes on within one call, and keeps nothing of a call that failed; so the file is written here, by its
function that reads a response, to a place in its cache that the next call finds again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from unicorn_async.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from unicorn_async.hub.needed import RepoFile

SMALLEST = 16 << 20  # bytes; smaller ones are not worth it
LARGEST = 50_000_000_000  # bytes, of what the hub gives by plain HTTP; larger ones the library brings by Xet
HEAD_BYTES = 32 << 20  # of a file, which have what describes it: a vocabulary of 262,144 tokens takes 10 MB
_SUFFIX = ".unicorn.incomplete"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASH_BYTES = 1 << 20
_TIMEOUT_S = 10.0


def can_go_on(file: RepoFile) -> bool:
    """Whether a file is one for `fetch`."""
    return file.sha256 is not None and _SHA256.fullmatch(file.sha256) is not None and SMALLEST <= file.nbytes <= LARGEST


def bytes_there(folder: Path, file: RepoFile) -> int:
    """Return how much of a file is there already, in the `folder` of its repository."""
    try:
        return _partial(folder, file).stat().st_size
    except FileNotFoundError:
        return 0


def fetch(
    url: str, file: RepoFile, folder: Path, revision: str, look: Callable[[BinaryIO], None] | None = None
) -> None:
    """Bring a file that `can_go_on` to its place in the folder of its repository.

    `look` is given the file when its first `HEAD_BYTES` are there; what it raises ends the download.

    Raises:
        DownloadError: another process brings it, or what came is not what the hub lists. Others: those of the library.
    """
    blob, partial = folder / "blobs" / str(file.sha256), _partial(folder, file)
    if not blob.exists():
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("ab") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise DownloadError(f"{file.name} is being brought by another process") from exc
            if look is not None:
                _receive(url, opened, file, min(HEAD_BYTES, file.nbytes))
                with partial.open("rb") as begun:
                    look(begun)
            _receive(url, opened, file, file.nbytes)
            if (digest := sha256_of(partial)) != file.sha256:
                partial.unlink()
                raise DownloadError(
                    f"{file.name}: expected sha256 {file.sha256}, got {digest}; it was removed, pull it again"
                )
            partial.replace(blob)
    link = folder / "snapshots" / revision / file.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))


def sha256_of(path: Path) -> str:
    """Return the digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as opened:
        while part := opened.read(_HASH_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _partial(folder: Path, file: RepoFile) -> Path:
    return folder / "blobs" / f"{file.sha256}{_SUFFIX}"


def _receive(url: str, opened: BinaryIO, file: RepoFile, end: int) -> None:
    """Append a file's bytes up to an end, as long as any come: a store's address is good for a while alone."""
    if opened.seek(0, os.SEEK_END) > file.nbytes:
        opened.truncate(0)
    while (start := opened.seek(0, os.SEEK_END)) < end:
        try:
            _append(url, opened, file, start, end)
        except Exception:  # whatever the library raises: it is told once nothing comes any more
            if opened.seek(0, os.SEEK_END) <= start:
                raise
    opened.flush()


def _append(url: str, opened: BinaryIO, file: RepoFile, start: int, end: int) -> None:
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    found = get_hf_file_metadata(url, timeout=_TIMEOUT_S)
    if found.size not in (None, file.nbytes):
        raise DownloadError(f"{file.name}: expected {file.nbytes} bytes, the hub has {found.size}")
    headers = build_hf_headers()
    if urlparse(found.location).netloc != urlparse(url).netloc:
        headers.pop("authorization", None)  # a signed address of a store elsewhere, which the token is not for
    if end < file.nbytes:
        headers["Range"] = f"bytes=0-{end - 1}"  # of which the library leaves out what is there
    http_get(
        found.location,
        opened,
        resume_size=start,
        headers=headers,
        expected_size=end,
        displayed_filename=Path(file.name).name,
    )
