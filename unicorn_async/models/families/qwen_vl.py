"""The text parts of Qwen's vision-language models: 2 VL, 2.5 VL and 3 VL.

Their rotary embeddings have a position for each of three axes, which of text are one and the same: for text alone they
are those of Qwen 2.5 and Qwen 3. Source: the models' config.json and transformers' `modeling_qwen2_5_vl.py` and
`modeling_qwen3_vl.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.models.families.qwen import qwen2, qwen3

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.spec import ModelSpec

_ROTARY_SECTIONS = ("rope_parameters", "rope_scaling")
_AXES = "mrope"  # a type of rotary embeddings that says no more than that there are several axes


def qwen2_vl(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Qwen2VLForConditionalGeneration`."""
    return replace(qwen2(_text_part(raw, rope_theta=1e6)), architecture="Qwen2VLForConditionalGeneration")


def qwen2_5_vl(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Qwen2_5_VLForConditionalGeneration`."""
    return replace(qwen2(_text_part(raw, rope_theta=1e6)), architecture="Qwen2_5_VLForConditionalGeneration")


def qwen3_vl(raw: JsonConfig) -> ModelSpec:
    """Read the text part of the config.json of a `Qwen3VLForConditionalGeneration`."""
    text = _text_part(raw, rope_theta=5e5, head_dim=128)
    return replace(qwen3(text), architecture="Qwen3VLForConditionalGeneration")


def _text_part(raw: JsonConfig, **defaults: float) -> JsonConfig:
    """The decoder's keys: in a section of their own, or in files of older versions beside the vision model's."""
    section = raw.section("text_config") if raw.has("text_config") else raw
    is_tied = any(part.flag("tie_word_embeddings", False) for part in (raw, section))
    keys: dict[str, object] = {**defaults, **section.raw, "tie_word_embeddings": is_tied}
    keys |= {name: _plain_rotary(part) for name in _ROTARY_SECTIONS if isinstance(part := keys.get(name), dict)}
    return JsonConfig(keys, section.where, section.traits)


def _plain_rotary(section: Mapping[str, object]) -> dict[str, object]:
    kind = section.get("rope_type", section.get("type"))
    return {**section, "rope_type": "default"} if kind == _AXES else dict(section)
