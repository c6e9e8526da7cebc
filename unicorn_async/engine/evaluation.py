"""A request that samples nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class Evaluation:
    """A request that samples nothing: rows of logits, gathered chunk by chunk, or an embedding as the only row."""

    rows: list[NDArray[np.float32]] = field(default_factory=list)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, error: BaseException | None = None) -> None:
        """Let who waits go on; one that was cancelled a moment ago, and has not said so yet, is left alone."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
