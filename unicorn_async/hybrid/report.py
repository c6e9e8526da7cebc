"""Where a model's attention runs, and what steps with attention on another device took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.config import AttentionKind
    from unicorn_async.hybrid.way_choice import AttentionChoice


@dataclass(frozen=True, slots=True)
class AttentionInfo:
    """Where the attention runs, and the KV cache lies.

    `kv_dtype` is the type of the cache's elements, `kv_cache_bytes` the size that it grows to, on `device`, and
    `kv_cache_bytes_now` what there is of that. On another device than the model's, `exchange` says how the two hand
    over a layer, and `reason` why in this way. `choice` is why it is there where `auto` was asked for.
    """

    kind: AttentionKind
    device: str
    is_software: bool
    exchange: str = ""
    reason: str = ""
    kv_dtype: str = "f16"
    kv_cache_bytes: int = 0
    kv_cache_bytes_now: int = 0
    choice: AttentionChoice | None = None

    def text(self) -> str:
        """Return a line for people."""
        if not self.exchange:
            return f"on {self.device}, as everything else"
        return f"on {self.device}{', SOFTWARE' if self.is_software else ''}; {self.exchange} memory: {self.reason}"

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "kind": self.kind.value,
            "device": self.device,
            "software": self.is_software,
            "exchange": self.exchange or None,
            "reason": self.reason or None,
            "kv_dtype": self.kv_dtype,
            "kv_cache_bytes": self.kv_cache_bytes,
            "kv_cache_bytes_now": self.kv_cache_bytes_now,
            "choice": None if self.choice is None else self.choice.to_json(),
        }


@dataclass(frozen=True, slots=True)
class AttentionStats:
    """Steps whose attention was on another device, as halves that alternate or whole.

    Of `step_s`, the time with a step under way, the model's device worked `near_s`, the one that attends `far_s`, and
    both at the same time `both_s`, as the host saw it. `step_times` is what the choice between the two ways goes by,
    see `SplitPolicy.preferences`. `recoveries` is how often the driver gave up on what attended, and the work was done
    again. `run_s` is how long a run of the NPU may take by a guess, which is less for a while after it took too long;
    None on another device.
    """

    split_steps: int
    whole_steps: int
    step_s: float
    near_s: float
    far_s: float
    both_s: float
    step_times: tuple[dict[str, object], ...]
    recoveries: int
    run_s: float | None = None

    @property
    def overlap_share(self) -> float:
        """The share of the attention's time in which the model's device worked as well."""
        return self.both_s / self.far_s if self.far_s else 0.0

    @property
    def bubble_share(self) -> float:
        """The share of the steps' time in which the model's device waited for the attention."""
        return 1.0 - self.near_s / self.step_s if self.step_s else 0.0

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "split_steps": self.split_steps,
            "whole_steps": self.whole_steps,
            "step_s": self.step_s,
            "near_s": self.near_s,
            "far_s": self.far_s,
            "both_s": self.both_s,
            "overlap_share": round(self.overlap_share, 4),
            "bubble_share": round(self.bubble_share, 4),
            "step_times": list(self.step_times),
            "recoveries": self.recoveries,
            "run_s": self.run_s,
        }
