"""What an engine gets of another device that attends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.hybrid.busy import BusyTrack
    from unicorn_async.hybrid.interface import FarAttention
    from unicorn_async.hybrid.report import AttentionInfo
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.step.frame import FrameLimits


@dataclass(frozen=True, slots=True)
class OpenedFar:
    """An opened attention; `track` gets its spans, `shape` is that of the keys and values that it is handed.

    `twin` is its device where that is another logical one of the GPU that runs the model.
    """

    attention: FarAttention
    track: BusyTrack
    info: AttentionInfo
    limits: FrameLimits
    shape: AttentionShape
    twin: Device | None = None
