"""What a store of blocks has done, and what it holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class KVStoreStats:
    """Counters since the engine was opened, and what there is now.

    `stored_blocks` were copied to the host's memory, `written_blocks` to the disk. `restored_blocks` came back to the
    device, `read_blocks` of them from the disk. `failures` are writes, reads and allocations that failed, the latest
    of them because of `problem`; no request fails by them. `disk` says how it stands with the disk, whose blocks are
    those of all models that nobody else has open. A copy of a state of fixed size counts as a block.
    """

    stored_blocks: int = 0
    stored_bytes: int = 0
    restored_blocks: int = 0
    restored_bytes: int = 0
    written_blocks: int = 0
    read_blocks: int = 0
    failures: int = 0
    problem: str = ""
    host_blocks: int = 0
    host_bytes: int = 0
    disk_blocks: int = 0
    disk_bytes: int = 0
    disk: str = "off"

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return asdict(self)
