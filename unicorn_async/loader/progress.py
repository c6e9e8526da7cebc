"""How far a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes are counted as the files have them; a layer is active once the device may use it.

    `from_cache` says that the files are those of the cache. Where they turn out to be damaged, the counts go on with
    the checkpoint's. Of files that are on their way, `bytes_downloaded` of `bytes_to_download` have come, whole files
    with what a load does not read; both are 0 where nothing is downloaded.
    """

    bytes_total: int
    bytes_loaded: int
    layers_total: int
    layers_active: int
    seconds: float
    done: bool
    from_cache: bool = False
    bytes_to_download: int = 0
    bytes_downloaded: int = 0

    @property
    def share(self) -> float:
        """Loaded share of the bytes, 0 to 1."""
        return self.bytes_loaded / self.bytes_total if self.bytes_total else float(self.done)

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second since the load began; None before anything has come."""
        return self.bytes_loaded / self.seconds if self.bytes_loaded and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest of the bytes will take at this rate; None before anything has come."""
        if self.done:
            return 0.0
        rate = self.bytes_per_s
        return None if rate is None else (self.bytes_total - self.bytes_loaded) / rate
