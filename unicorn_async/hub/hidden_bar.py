"""A bar of huggingface_hub that nobody sees; import it where that library is there."""

from __future__ import annotations

from huggingface_hub.utils.tqdm import tqdm


class HiddenBar(tqdm):
    """Shows nothing wherever the library would show a bar, and has no thread that looks after it."""

    monitor_interval = 0  # else a class begins one with its first bar, and never ends it

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **{**named, "disable": True})  # type: ignore[no-untyped-call]
