"""Which of a device's queues to use for compute and for copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import MissingFeatureError

if TYPE_CHECKING:
    from collections.abc import Sequence

_GRAPHICS, _COMPUTE, _TRANSFER, _SPARSE = 0x1, 0x2, 0x4, 0x8


class QueuePlan(NamedTuple):
    """(family, index in the family) of the compute queue and of the transfer queue; the same where there is one."""

    compute: tuple[int, int]
    transfer: tuple[int, int]


def plan_queues(families: Sequence[tuple[int, int, int]]) -> QueuePlan:
    """Choose from (flags, number of queues, timestamp bits) per family.

    Compute goes to a family without graphics, which leaves the desktop's queue alone; copies to a family that only
    copies (a DMA engine), else to a second queue of the compute family, else to another family that computes.

    Raises:
        MissingFeatureError: no family computes.
    """
    computing = [i for i, (flags, count, _) in enumerate(families) if flags & _COMPUTE and count]
    if not computing:
        raise MissingFeatureError(f"no compute queue among {len(families)} queue families")
    compute = min(computing, key=lambda i: (bool(families[i][0] & _GRAPHICS), i))
    copying = [
        i
        for i, (flags, count, _) in enumerate(families)
        if count and flags & (_GRAPHICS | _COMPUTE | _TRANSFER) == _TRANSFER and not flags & ~(_TRANSFER | _SPARSE)
    ]
    if copying:
        return QueuePlan((compute, 0), (copying[0], 0))
    if families[compute][1] > 1:
        return QueuePlan((compute, 0), (compute, 1))
    others = [i for i in computing if i != compute]
    return QueuePlan((compute, 0), (others[0], 0) if others else (compute, 0))
