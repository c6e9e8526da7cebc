"""What clients are told of a model that may be loaded: an entry of the list, and where it would lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.engine.model_facts import ModelFacts
    from unicorn_async.engine.model_library import ListedModel, PlannedModel
    from unicorn_async.engine.placement import DevicePlan


def details(model: ListedModel, public_text: Callable[[str], str]) -> dict[str, object]:
    """Return what is known of a model's files: `details` is None before they were read; sizes are in bytes."""
    problem = model.problem or (model.facts.problem if model.facts is not None else None)
    return {
        "details": None if model.facts is None else _facts(model.facts),
        "problem": None if problem is None else public_text(problem).removeprefix(f"{model.name}: "),
    }


def placement_object(planned: PlannedModel, public_text: Callable[[str], str]) -> dict[str, object]:
    """Return where a model would lie on each device that a load would try."""
    return {
        "object": "model.placement",
        "model": planned.name,
        "weights": planned.weights.value,
        "bytes_to_read": planned.bytes_to_read,
        "fits": any(device.plan is not None for device in planned.devices),
        "devices": [_device(device, public_text) for device in planned.devices],
    }


def _device(device: DevicePlan, public_text: Callable[[str], str]) -> dict[str, object]:
    return {**device.to_json(), "problem": None if device.problem is None else public_text(device.problem)}


def _facts(facts: ModelFacts) -> dict[str, object]:
    return {
        "file_bytes": facts.file_bytes,
        "format": facts.format,
        "weight_types": list(facts.weight_types),
        "quantised": facts.is_quantised,
        "parameters": facts.num_parameters,
        "layers": facts.num_layers,
        "max_context": facts.max_context,
        "architecture": facts.architecture,
        "fits": facts.fits,
    }
