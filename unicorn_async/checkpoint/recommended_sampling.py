"""How a model's makers want its tokens to be drawn: generation_config.json, or the metadata of a GGUF file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from unicorn_async.checkpoint.strict_json import read_object
from unicorn_async.errors import ConfigError
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

FILE = "generation_config.json"
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# Of GGUF's metadata: llama.cpp, gguf-py's constants.
_GGUF_NAMES = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def recommended_sampling(path: Path, metadata: Mapping[str, object] | None) -> dict[str, float]:
    """Return what is recommended, by the names of `SamplingParams`; `metadata` is a GGUF file's.

    A model that is not to be sampled from (`do_sample` false) has its penalty alone. What can't be done is left out.

    Raises:
        CheckpointError: generation_config.json is damaged.
    """
    given: dict[str, object] = {}
    source = str(path)
    if metadata is not None:
        for key, name in _GGUF_NAMES.items():
            value = metadata.get(key)
            given[name] = round(value, 6) if isinstance(value, float) else value  # 0.95 is stored in 32 bits
    elif (file := path / FILE).exists():
        source, config = str(file), read_object(file)
        names = ("repetition_penalty",) if config.get("do_sample") is False else NAMES
        given = {name: config.get(name) for name in names}
    numbers = {name: value for name, value in given.items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if _is_possible(name, value, source)}


def _is_possible(name: str, value: float, source: str) -> bool:
    given: dict[str, Any] = {name: value}
    try:
        SamplingParams(**given)
    except ConfigError as exc:
        logger.warning("%s: a recommendation that is left out: %s", source, exc)
        return False
    return True
