"""What tells a checkpoint's files from others, without reading them whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.partial_file import PartialFile

MAX_HASHED_BYTES = 16 << 20  # of a file's beginning
_SAMPLE_BYTES = 4096
_NUM_SAMPLES = 16
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells a checkpoint's file from another one without reading it whole.

    `header` is the hash of what is before the tensors. Where the file is a link into the Hugging Face cache, `blob` is
    its name there, the SHA-256 of its bytes; otherwise it was written at `mtime_ns`, and `samples` is the hash of some
    of its blocks. Where the file lies does not count.
    """

    nbytes: int
    header: str
    blob: str = ""
    mtime_ns: int = 0
    samples: str = ""

    @classmethod
    def of(cls, path: Path, header_bytes: int, partial: PartialFile | None = None) -> FileIdentity:
        """Look at a file; it blocks on the disk, and reads a few pages beside the header.

        Of a `partial` file it waits for the header, and takes the digest for right that it is said to have.

        Raises:
            CheckpointError: it can't be read.
        """
        try:
            if partial is not None:
                with partial.open() as file:
                    header = hashlib.sha256(file.read(min(header_bytes, MAX_HASHED_BYTES))).hexdigest()
                return cls(partial.nbytes, header, partial.sha256)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with contextlib.suppress(OSError):  # advice: without it, a page fetches many more
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                found = os.fstat(descriptor)
                header = _digest(descriptor, [(0, min(header_bytes, MAX_HASHED_BYTES))])
                if blob := blob_of(path):
                    return cls(found.st_size, header, blob)
                last = max(found.st_size - _SAMPLE_BYTES, 0)
                places = [(index * last // (_NUM_SAMPLES - 1), _SAMPLE_BYTES) for index in range(_NUM_SAMPLES)]
                return cls(found.st_size, header, "", found.st_mtime_ns, _digest(descriptor, places))
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc


def blob_of(path: Path) -> str:
    """Return the name of the file in the Hugging Face cache that `path` is a link to, "" where it is none."""
    if not path.is_symlink():
        return ""
    target = path.resolve()
    is_blob = target.parent.name == "blobs" and _BLOB_NAME.fullmatch(target.name) is not None
    return target.name if is_blob else ""


def identify_files(checkpoint: Checkpoint) -> tuple[FileIdentity, ...]:
    """Look at all files of a checkpoint; raises as `FileIdentity.of`."""
    starts: dict[int, int] = {}
    for tensor in checkpoint.tensors.values():
        starts[tensor.file] = min(tensor.offset, starts.get(tensor.file, tensor.offset))
    return tuple(
        FileIdentity.of(path, starts.get(index, 0), checkpoint.partial.get(path))
        for index, path in enumerate(checkpoint.files)
    )


def _digest(descriptor: int, places: list[tuple[int, int]]) -> str:
    digest = hashlib.sha256()
    for offset, nbytes in places:
        digest.update(os.pread(descriptor, nbytes, offset))
    return digest.hexdigest()
