"""How the replicas are: asked when somebody wants to know it, once for all who do at about that time."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from unicorn_async.server.model_state import ModelState, ModelStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.ray.calls import Report
    from unicorn_async.ray.engines import Engines

_AGE_S = 1.0  # of what is told once more
_INTERVAL_S = 5.0  # between looks for those who watch
_ORDER = {status.value: order for order, status in enumerate((ModelStatus.READY, ModelStatus.LOADING))}


class Census:
    """What all replicas are taken together: as well as the best of them."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._reports: list[Report] = []
        self._asked_s = -math.inf
        self._asking = asyncio.Lock()

    async def reports(self) -> list[Report]:
        """Return what each replica says, the best one first."""
        async with self._asking:
            if time.monotonic() - self._asked_s > _AGE_S:
                self._reports = sorted(await self._engines.reports(), key=_order)
                self._asked_s = time.monotonic()
        return self._reports

    @property
    def state(self) -> ModelState:
        """What was served at the last look; there is no model here."""
        if not self._reports:
            return ModelState(ModelStatus.OPENING)
        best = self._reports[0].health
        name, error, waits_for = (_text(best.get(key)) for key in ("model", "error", "waits_for"))
        return ModelState(ModelStatus(best["status"]), name, error=error, waits_for=waits_for)

    async def watch(self) -> AsyncIterator[ModelState]:
        """Yield the state now and whenever it is seen to have changed."""
        told: ModelState | None = None
        while True:
            await self.reports()
            if self.state != told:
                told = self.state
                yield told
            await asyncio.sleep(_INTERVAL_S)


def _order(report: Report) -> tuple[bool, bool, int, str]:
    return (
        not report.is_ready,
        not report.is_well,
        _ORDER.get(str(report.health["status"]), len(_ORDER)),
        report.replica,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
