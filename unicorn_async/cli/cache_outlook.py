"""What a load would do to the weight cache after it: what it would write, and what would go for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.cache.container import container_of
from unicorn_async.cache.lookup import CacheState
from unicorn_async.cli.amounts import size
from unicorn_async.errors import CacheError

if TYPE_CHECKING:
    from unicorn_async.cache.folder import CacheFolder, StoredEntry
    from unicorn_async.cache.lookup import CacheStatus
    from unicorn_async.weights.plan import LoadPlan


@dataclass(frozen=True, slots=True)
class CacheOutlook:
    """The entry of `nbytes` that a load would write, removing others for it, or the `problem` why it would not."""

    nbytes: int
    removed: tuple[StoredEntry, ...] = ()
    problem: str = ""

    def text(self) -> str:
        """Return the end of a line for people."""
        if self.problem:
            return f"a load would not keep it: {self.problem}"
        others = sum(one.nbytes for one in self.removed)
        count = "1 entry" if len(self.removed) == 1 else f"{len(self.removed)} entries"
        instead = f" in place of {count} with {size(others)}" if self.removed else ""
        return f"a load would write {size(self.nbytes)}{instead}"

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values; sizes in bytes."""
        return {
            "would_write": 0 if self.problem else self.nbytes,
            "would_remove": [one.key for one in self.removed],
            "problem": self.problem,
        }


def cache_outlook(
    folder: CacheFolder | None, plan: LoadPlan, status: CacheStatus, limit: int | None
) -> CacheOutlook | None:
    """Return what a load of the plan would write, None where it would write nothing; it blocks on the disk.

    `limit` is the most that all entries may have, None for what the folder allows by itself.
    """
    if folder is None or status.state is not CacheState.MISS:
        return None
    nbytes = container_of(plan.destinations).nbytes
    try:
        others = [one for one in folder.entries() if one.key != status.key]  # a damaged one of this name goes first
        return CacheOutlook(nbytes, folder.in_the_way(others, nbytes, folder.limit(limit)))
    except CacheError as exc:
        return CacheOutlook(nbytes, problem=str(exc))
