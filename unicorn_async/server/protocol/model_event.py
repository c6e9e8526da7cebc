"""What a websocket client that asks for it is told about the served model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.engine.types import LoadProgress
    from unicorn_async.server.model_state import ModelState


def model_event(state: ModelState) -> str:
    """Return `unicorn.model`: which model requests get now, or will get, and how far it is."""
    event = {
        "type": "unicorn.model",
        "model": state.name,
        "status": state.status.value,
        "waits_for": state.waits_for,
        "error": state.error,
    }
    return encode_object(event)


def progress_event(name: str, progress: LoadProgress, prompts: Mapping[str, int]) -> str:
    """Return `unicorn.load.progress`; `prompts` are the layers that each response's prompt went through."""
    fields = {**progress_fields(progress), "prompts": prompts}
    return encode_object({"type": "unicorn.load.progress", "model": name, **fields})


def progress_fields(progress: LoadProgress) -> dict[str, object]:
    """Return how far a load is, as JSON values; what nobody knows yet is None."""
    rate, left = progress.bytes_per_s, progress.seconds_left
    return {
        "bytes_total": progress.bytes_total,
        "bytes_loaded": progress.bytes_loaded,
        "bytes_per_s": None if rate is None else round(rate),
        "layers_total": progress.layers_total,
        "layers_active": progress.layers_active,
        "seconds": round(progress.seconds, 3),
        "seconds_left": None if left is None else round(left, 3),
        "share": round(progress.share, 4),
        "from_cache": progress.from_cache,
        "bytes_to_download": progress.bytes_to_download,
        "bytes_downloaded": progress.bytes_downloaded,
        "done": progress.done,
    }


def failure_event(state: ModelState) -> str:
    """Return `unicorn.load.failed` for a model that could not be opened or loaded, or whose engine failed."""
    code = "engine_failed" if state.has_served else "model_load_failed"
    error = {"message": state.error, "type": "server_error", "param": None, "code": code}
    return encode_object({"type": "unicorn.load.failed", "model": state.name, "error": error})
