"""What `/health` says of the server, its model and its device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unicorn_async.server.model_state import ModelStatus
from unicorn_async.server.protocol.model_event import progress_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.engine.types import DraftInfo, EngineStats
    from unicorn_async.server.archive import ArchiveState
    from unicorn_async.server.model_state import ModelState
    from unicorn_async.server.served_model import ServedModel


def is_well(state: ModelState) -> bool:
    """Whether requests are answered, or wait for a model that is on its way; not so after a failure."""
    return state.status is not ModelStatus.EMPTY and state.error is None and _outage(state) is None


def is_ready(state: ModelState) -> bool:
    """Whether requests are taken now."""
    return state.status in (ModelStatus.LOADING, ModelStatus.READY) and _outage(state) is None


def outages(state: ModelState, store: ArchiveState) -> dict[str, str]:
    """Return what an open model needs, or responses that are to be kept, and can't have now, and why."""
    return _model_outages(state) | store.outages


def _model_outages(state: ModelState) -> dict[str, str]:
    model = state.model
    return {} if model is None else {part: model.public_text(why) for part, why in model.engine.outages.items()}


def _outage(state: ModelState) -> str | None:
    """Why texts, or conversations, can't be taken, though the engine is well; others go on without the rest."""
    found = _model_outages(state)
    return found.get("tokenizer", found.get("chat_template"))


def health(
    state: ModelState, store: ArchiveState, *, can_switch: bool, keys: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the body, with what is said of the store, and of the keys where they may be renewed.

    Without an open model it has nothing of the device, and of the load what comes of a download alone.
    """
    report: dict[str, object] = {
        "status": state.status.value,
        "model": state.name,
        "version": package_version(),
        "can_switch": can_switch,
        "error": state.error or _outage(state),
        "waits_for": state.waits_for,
        "outages": outages(state, store),
        "store": store.to_json(),
    }
    if keys is not None:
        report["keys"] = keys
    if state.download is not None:
        report["load"] = progress_fields(state.download)
    if state.model is not None:
        report |= _engine_report(state.model)
    return report


def _engine_report(model: ServedModel) -> dict[str, object]:
    engine = model.engine
    progress, stats, device = engine.progress, engine.stats(), engine.device
    return {
        "open_model": engine.model_name,
        "max_context": engine.max_context,
        "chat_template": engine.tokenizer.has_chat_template,
        "device": {
            "name": device.name,
            "type": device.type.value,
            "driver": device.driver_name,
            "driver_info": device.driver_info,
            "software": device.is_software,
        },
        "attention": engine.attention.to_json(),
        "adapters": [
            {name: getattr(adapter, name) for name in type(adapter).__dataclass_fields__} for adapter in engine.adapters
        ],
        "draft": _draft_report(engine.draft),
        "predictor": engine.predicts,
        "predictor_left_out": engine.predictor_left_out or None,
        "kernels": list(engine.kernels),
        "loaded": round(progress.share, 4),
        "load": {**progress_fields(progress), "tokenizer_s": round(engine.tokenizer_s, 3)},
        "cache": engine.cache.to_json() | {"reason": model.public_text(engine.cache.reason)},
        "memory": engine.memory.to_json(),
        "stats": {name: getattr(stats, name) for name in type(stats).__dataclass_fields__}
        | {
            "attention": stats.attention.to_json() if stats.attention is not None else None,
            "kv_store": _store_report(stats, model.public_text),
        },
    }


def _store_report(stats: EngineStats, public_text: Callable[[str], str]) -> dict[str, object] | None:
    store = stats.kv_store
    if store is None:
        return None
    return store.to_json() | {"problem": public_text(store.problem), "disk": public_text(store.disk)}


def _draft_report(draft: DraftInfo | None) -> dict[str, object] | None:
    if draft is None:
        return None
    return {"name": draft.name, "bytes": draft.nbytes, "max_context": draft.max_context, "loaded": draft.is_loaded}


@cache
def package_version() -> str:
    """Return the installed package's version, or "unknown" in a checkout that is not installed; read from disk once."""
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as a tenth of the server

    try:
        return version("unicorn-async")
    except PackageNotFoundError:
        return "unknown"
