"""How far a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes are counted as the files have them; a layer is active once the device may use it.

    `from_cache` says that the files are those of the cache. Where they turn out to be damaged, the counts go on with
    the checkpoint's.
    """

    bytes_total: int
    bytes_loaded: int
    layers_total: int
    layers_active: int
    seconds: float
    done: bool
    from_cache: bool = False

    @property
    def share(self) -> float:
        """Loaded share of the bytes, 0 to 1."""
        return self.bytes_loaded / self.bytes_total if self.bytes_total else float(self.done)
