"""How a load reads its files: through the page cache, or past it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

READ_AHEAD_BYTES = 64 << 20  # with less the disk idles between requests, with more pages wait in memory for nothing
WARM_SHARE = 0.9
_RESERVE_SHARE = 0.1  # of the free memory, left to others
_MIN_COPIERS, _MAX_COPIERS = 4, 8  # below, copying waits; above, threads only wait for each other
_DISK_THREADS = 8  # each waits for the disk most of the time, and fewer would let it idle
_GIGA = 1e9


class ReadMode(Enum):
    """Where the bytes pass.

    WARM: they are in the page cache already. CACHED: from the disk through the page cache, where they stay for the
    next load. DIRECT: O_DIRECT into ordinary memory, past the page cache. DROPPED: through the page cache, but what
    was read is dropped at once, for file systems without O_DIRECT.
    """

    WARM = "page cache"
    CACHED = "buffered"
    DIRECT = "O_DIRECT"
    DROPPED = "buffered and dropped"


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """What the choice depends on; sizes in bytes.

    `file_bytes` is what the load reads, `resident_share` the share of it in the page cache. `free_bytes` is host memory
    that can be had without swapping, None where nobody tells or it decides nothing, and `host_bytes` the part of it
    that the model itself takes, where the device has no memory of its own.
    """

    file_bytes: int
    resident_share: float
    free_bytes: int | None
    host_bytes: int
    has_direct: bool
    num_cores: int


@dataclass(frozen=True, slots=True)
class ReadStrategy:
    """How to read: `read_ahead_bytes` is what the kernel is asked for ahead of the reads, `reason` is for people."""

    mode: ReadMode
    num_threads: int
    read_ahead_bytes: int = 0
    reason: str = ""

    def text(self) -> str:
        """Return one line that says how, and why."""
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{self.mode.value}, {threads}: {self.reason}"


def choose_read_strategy(facts: ReadFacts, *, num_threads: int | None = None) -> ReadStrategy:
    """Choose by rule: what lies in memory is read there; else what fits is cached, what does not is read past it.

    `num_threads` None chooses by the number of cores where the bytes are only copied, and by the disk elsewhere.
    """
    disk_threads = num_threads or _DISK_THREADS
    if facts.resident_share >= WARM_SHARE:
        reason = f"{facts.resident_share:.0%} of the files are in memory already"
        return ReadStrategy(ReadMode.WARM, num_threads or _num_copiers(facts.num_cores), 0, reason)
    wanted = facts.file_bytes + facts.host_bytes
    what = f"{_amount(facts.file_bytes)} to read"
    if facts.host_bytes:
        what += f" and {_amount(facts.host_bytes)} for the model"
    if facts.free_bytes is None or wanted <= facts.free_bytes * (1 - _RESERVE_SHARE):
        room = "in memory whose free part is unknown" if facts.free_bytes is None else _free(facts.free_bytes)
        reason = f"{what}, {room}: the files stay in the page cache for the next load"
        return ReadStrategy(ReadMode.CACHED, disk_threads, READ_AHEAD_BYTES, reason)
    reason = f"{what}, {_free(facts.free_bytes)}: nothing else is pushed out of memory"
    if facts.has_direct:
        return ReadStrategy(ReadMode.DIRECT, disk_threads, 0, reason)
    reason += "; the file system has no O_DIRECT"
    return ReadStrategy(ReadMode.DROPPED, disk_threads, READ_AHEAD_BYTES, reason)


def download_strategy(num_cores: int, *, num_threads: int | None = None) -> ReadStrategy:
    """Choose for files that are on their way: what has just come is in the page cache."""
    return ReadStrategy(ReadMode.WARM, num_threads or _num_copiers(num_cores), 0, "the files are read as they come")


def _num_copiers(num_cores: int) -> int:
    return max(_MIN_COPIERS, min(_MAX_COPIERS, num_cores))


def _free(nbytes: int) -> str:
    return f"{_amount(nbytes)} of host memory free"


def _amount(nbytes: int) -> str:
    return f"{nbytes / _GIGA:.1f} GB"
