"""The bodies of POST /v1/models/load, /v1/models/unload and /v1/models/placement."""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_async.config import WeightScheme
from unicorn_async.engine.model_library import AdapterChoice, ModelChoice
from unicorn_async.lora_spec import MAX_LORA_WEIGHT, MAX_LORAS
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields

MAX_NAME = 512
MAX_CONTEXT = (1 << 31) - 1
UNLOAD_FIELDS = frozenset({"model", "wait", "when_idle"})
CHOICE_FIELDS = frozenset({"model", "loras", "max_context", "weights"})
LOAD_FIELDS = UNLOAD_FIELDS | CHOICE_FIELDS
ADAPTER_FIELDS = frozenset({"name", "path", "weight"})


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A checked request to load a model: what, and whether to wait for its end and for the last one's answers."""

    choice: ModelChoice
    wait: bool = False
    when_idle: bool = False


@dataclass(frozen=True, slots=True)
class UnloadRequest:
    """A checked request to unload the model; one that names it is for that model alone."""

    model: str | None = None
    wait: bool = False
    when_idle: bool = False


def parse_load_request(fields: Fields) -> LoadRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong or unknown.
    """
    fields.refuse_unknown(LOAD_FIELDS)
    return LoadRequest(_choice(fields), fields.boolean("wait") is True, fields.boolean("when_idle") is True)


def parse_placement_request(fields: Fields) -> ModelChoice:
    """Check a request's body, that of a load without what concerns its time; raises as `parse_load_request` does."""
    fields.refuse_unknown(CHOICE_FIELDS)
    return _choice(fields)


def parse_unload_request(fields: Fields) -> UnloadRequest:
    """Check a request's body; raises as `parse_load_request` does."""
    fields.refuse_unknown(UNLOAD_FIELDS)
    model = fields.string("model", max_length=MAX_NAME)
    if model == "":
        raise fields.wrong("model", "the name of a model, or none at all", code="invalid_value")
    return UnloadRequest(model, fields.boolean("wait") is True, fields.boolean("when_idle") is True)


def _choice(fields: Fields) -> ModelChoice:
    name = fields.string("model", max_length=MAX_NAME)
    if not name:
        raise ApiError("model: expected the name of a model", code="missing_parameter", param="model")
    return ModelChoice(
        name=name,
        weights=_weights(fields),
        max_context=fields.integer("max_context", 1, MAX_CONTEXT),
        loras=_adapters(fields),
    )


def _weights(fields: Fields) -> WeightScheme | None:
    text = fields.string("weights")
    if text is None:
        return None
    try:
        return WeightScheme(text)
    except ValueError:
        known = ", ".join(scheme.value for scheme in WeightScheme)
        raise fields.wrong("weights", f"one of {known}", code="invalid_value") from None


def _adapters(fields: Fields) -> tuple[AdapterChoice, ...] | None:
    items = fields.array("loras")
    if items is None:
        return None
    if len(items) > MAX_LORAS:
        message = f"loras: expected at most {MAX_LORAS} adapters, got {len(items)}"
        raise ApiError(message, code="invalid_value", param="loras")
    return tuple(_adapter(item, f"{fields.name('loras')}[{index}]") for index, item in enumerate(items))


def _adapter(item: object, path: str) -> AdapterChoice:
    if not isinstance(item, dict):
        raise ApiError(f"{path}: expected an object", code="invalid_type", param=path)
    fields = Fields(item, path)
    fields.refuse_unknown(ADAPTER_FIELDS)
    name, folder = (fields.string(key, max_length=MAX_NAME) for key in ("name", "path"))
    if (name is None) == (folder is None):
        raise ApiError(f"{path}: expected either a name or a path", code="invalid_value", param=path)
    weight = fields.number("weight")
    if weight is not None and abs(weight) > MAX_LORA_WEIGHT:
        raise fields.wrong("weight", f"at most {MAX_LORA_WEIGHT:g} in magnitude", code="invalid_value")
    return AdapterChoice(name or folder or "", 1.0 if weight is None else weight)
