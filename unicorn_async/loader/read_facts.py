"""What a load's way of reading depends on, looked up on this machine."""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.gpu.host_pages import num_resident
from unicorn_async.loader.read_strategy import WARM_SHARE, ReadFacts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NUM_SAMPLES = 128


def read_facts(files: Sequence[Path], *, file_bytes: int, host_bytes: int) -> ReadFacts:
    """Look at the files and at this machine; it reads a few pages at most, and only what is in memory already.

    Of files that are in memory nothing else decides: what is free, and whether they can be read directly, is not looked
    up.

    Raises:
        CheckpointError: a file can't be opened.
    """
    share = resident_share(files)
    is_warm = share >= WARM_SHARE
    return ReadFacts(
        file_bytes=file_bytes,
        resident_share=share,
        free_bytes=None if is_warm else HostMemory().available_bytes(),
        host_bytes=host_bytes,
        has_direct=not is_warm and all(_opens_direct(path) for path in files),
        num_cores=len(os.sched_getaffinity(0)),
    )


def resident_share(files: Sequence[Path], *, num_samples: int = _NUM_SAMPLES, seed: int | None = None) -> float:
    """Estimate which share of the files' bytes is in the page cache, by samples at random places.

    The places differ each time (unless there is a `seed`), because the kernel may fetch the page that it was asked for
    and did not have. A file system that can't say counts as not resident.

    Raises:
        CheckpointError: a file can't be opened.
    """
    ends = list(accumulate(_size(path) for path in files))
    if not ends or not ends[-1]:
        return 1.0
    places: dict[int, list[int]] = {}
    rng = random.Random(seed)
    for position in sorted(rng.randrange(ends[-1]) for _ in range(num_samples)):
        index = bisect_right(ends, position)
        places.setdefault(index, []).append(position - (ends[index - 1] if index else 0))
    return sum(_num_resident(files[index], offsets) for index, offsets in places.items()) / num_samples


def _num_resident(path: Path, offsets: list[int]) -> int:
    descriptor = _open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # else a miss would fetch much more than a page
        return num_resident(descriptor, offsets)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror}") from exc


def _opens_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT))
    except OSError:
        return False
    return True


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror}") from exc
