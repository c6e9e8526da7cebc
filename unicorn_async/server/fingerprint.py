"""`system_fingerprint`: what an answer was computed by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from unicorn_async.engine.types import EngineAPI


def fingerprint(engine: EngineAPI) -> str:
    """Return a name of the model, its adapters, its context, and the devices and driver that run it."""
    import hashlib  # which the engine needs, too, beside its load

    device = engine.device
    parts = [
        engine.model_name,
        engine.max_context,
        [[adapter.name, adapter.weight] for adapter in engine.adapters],
        replace(engine.attention, choice=None).to_json(),
        [device.name, device.driver_name, device.driver_info],
    ]
    return f"fp_{hashlib.sha256(encode_object(parts).encode()).hexdigest()[:12]}"
