"""What config.json says of rotary embeddings.

Source: transformers' `modeling_rope_utils.py`; YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753).
"""

from __future__ import annotations

import math
from dataclasses import replace

from unicorn_async.checkpoint.json_config import MAX_COUNT, JsonConfig
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.rotary import RotaryConfig, RotaryScaling

_MOST_ROWS = 1 << 12  # of a head, of which a list is made before anything else looks at them
_LONGROPE = ("longrope", "su")


def read_rotary(
    raw: JsonConfig, head_dim: int, *, default_base: float = 10_000.0, default_part: float = 1.0
) -> RotaryConfig:
    """Return the rotary embedding of `rope_parameters`, or of `rope_theta` and `rope_scaling`.

    `default_part` is the share of a head that rotates where the file does not say it.
    """
    base, part = raw.number("rope_theta", default_base), raw.number("partial_rotary_factor", default_part)
    name = next((name for name in ("rope_parameters", "rope_scaling") if raw.has(name)), None)
    section = None if name is None else raw.section(name)
    if section is not None:
        part = section.number("partial_rotary_factor", part)
        base = section.number("rope_theta", base) if name == "rope_parameters" else base
    dim = int(head_dim * min(part, 2.0))
    if not 0 < dim <= head_dim or dim % 2:
        raise UnsupportedModelError(f"{raw.where}: partial_rotary_factor: {part} of a head of {head_dim} elements")
    if factors := raw.traits.rope_factors:
        return RotaryConfig(base, RotaryScaling.FACTORS, factors=factors, dim=dim % head_dim)
    if section is None:
        return RotaryConfig(base, dim=dim % head_dim)
    return replace(_read_scaling(section, base, dim, raw), dim=dim % head_dim)


def read_whole_rotary(raw: JsonConfig, head_dim: int, default_base: float) -> RotaryConfig:
    """Return `read_rotary` for a family whose heads rotate as a whole.

    Raises:
        UnsupportedModelError: a part of them would; transformers overlooks the key in these families, or fails.
    """
    rotary = read_rotary(raw, head_dim, default_base=default_base)
    if rotary.dim:
        raise _head_part(raw, rotary.dim / head_dim)
    return rotary


def read_section_rotary(section: JsonConfig, head_dim: int, default_base: float, raw: JsonConfig) -> RotaryConfig:
    """Return what a section of `rope_parameters` says of one kind of layers; raises as `read_whole_rotary` does."""
    if (part := section.number("partial_rotary_factor", 1.0)) != 1.0:
        raise _head_part(section, part)
    return _read_scaling(section, section.number("rope_theta", default_base), head_dim, raw)


def read_layer_rotary(section: JsonConfig, head_dim: int, default_base: float, raw: JsonConfig) -> RotaryConfig:
    """Return the same, of which the first pairs alone may rotate, each as fast as it would if all did: "proportional".

    Raises:
        UnsupportedModelError: as `read_section_rotary`, or a head has not so many pairs.
    """
    if section.text("rope_type", "default") != "proportional":
        return read_section_rotary(section, head_dim, default_base, raw)
    part, factor = section.number("partial_rotary_factor", 1.0), section.factor("factor", 1.0)
    num_pairs = int(head_dim * min(part, 2.0) / 2)
    if not 0 < num_pairs <= head_dim // 2:
        raise _head_part(section, part)
    scaling = RotaryScaling.NONE if factor == 1.0 else RotaryScaling.LINEAR
    pairs = num_pairs % (head_dim // 2)
    return RotaryConfig(section.number("rope_theta", default_base), scaling, factor, num_pairs=pairs)


def _head_part(config: JsonConfig, part: float) -> UnsupportedModelError:
    return UnsupportedModelError(f"{config.where}: partial_rotary_factor: {part:g} of a head is not supported here")


def _read_scaling(section: JsonConfig, base: float, dim: int, raw: JsonConfig) -> RotaryConfig:
    """Read an object as the scaling of an embedding that rotates `dim` elements; `raw` has what lies beside it."""
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return RotaryConfig(base)
    if kind == "linear":
        return RotaryConfig(base, RotaryScaling.LINEAR, section.factor("factor"))
    if kind == "llama3":
        return RotaryConfig(
            base,
            RotaryScaling.LLAMA3,
            section.factor("factor"),
            section.factor("low_freq_factor"),
            section.factor("high_freq_factor"),
            section.count("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return _yarn(section, base, dim, raw)
    if kind in _LONGROPE:
        return _longrope(section, base, dim, raw)
    raise UnsupportedModelError(
        f"{section.where}: rope_type {kind!r} is not supported; known are default, linear, llama3, yarn, longrope"
    )


def original_positions(section: JsonConfig, raw: JsonConfig) -> int:
    """Return the context that a model had before it was scaled; the key beside the section comes first."""
    name = "original_max_position_embeddings"
    inner = section.count(name, raw.count("max_position_embeddings"))
    found = raw.count(name, inner)
    if found < 2:
        raise CheckpointError(f"{raw.where}: {name}: expected at least 2, got {found}")
    return found


def scaled_positions(raw: JsonConfig, given: int) -> int:
    """Return the context that YaRN makes of the original one, where a file has not put it in place of that itself."""
    section = raw.raw.get("rope_parameters") or raw.raw.get("rope_scaling")
    if not isinstance(section, dict) or section.get("rope_type", section.get("type")) != "yarn":
        return given
    yarn = JsonConfig(section, f"{raw.where}: YaRN")
    original = yarn.count("original_max_position_embeddings", given)
    return max(given, min(int(original * yarn.factor("factor")), MAX_COUNT))


def _yarn(section: JsonConfig, base: float, dim: int, raw: JsonConfig) -> RotaryConfig:
    """Pairs that turn often enough keep their frequency, slow ones are divided, those between a mixture."""
    if base <= 1.0:
        raise CheckpointError(f"{section.where}: rope_theta: expected more than 1, got {base}")
    if dim > _MOST_ROWS:
        raise UnsupportedModelError(f"{raw.where}: head_dim: expected at most {_MOST_ROWS}, got {dim}")
    original = original_positions(section, raw)
    factor = section.factor("factor")

    def pair(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(section.factor("beta_fast", 32.0)), pair(section.factor("beta_slow", 1.0))
    if section.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    divided = [min(max((index - low) / span, 0.0), 1.0) for index in range(dim // 2)]
    factors = tuple(1.0 / (share / factor + 1.0 - share) for share in divided)
    amplitude = _yarn_amplitude(factor, 1.0)
    if _says(section, "mscale") and _says(section, "mscale_all_dim"):
        whole = _yarn_amplitude(factor, section.factor("mscale_all_dim"))
        amplitude = _yarn_amplitude(factor, section.factor("mscale")) / whole
    amplitude = section.factor("attention_factor", amplitude)
    return RotaryConfig(base, RotaryScaling.FACTORS, factors=factors, amplitude=amplitude)


def _yarn_amplitude(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _says(section: JsonConfig, name: str) -> bool:
    """Whether a key has a value: 0 is as good as none."""
    return section.has(name) and section.raw[name] != 0


def softmax_growth(raw: JsonConfig) -> float:
    """Return what DeepSeek's models multiply their scores by beside YaRN: the square of a second amplitude."""
    name = next((name for name in ("rope_parameters", "rope_scaling") if raw.has(name)), None)
    section = None if name is None else raw.section(name)
    if section is None or section.text("rope_type", section.text("type", "default")) == "default":
        return 1.0
    if not _says(section, "mscale_all_dim"):
        return 1.0
    return _yarn_amplitude(section.factor("factor"), section.number("mscale_all_dim")) ** 2


def _longrope(section: JsonConfig, base: float, dim: int, raw: JsonConfig) -> RotaryConfig:
    original = original_positions(section, raw)
    factor = section.factor("factor", raw.count("max_position_embeddings") / original)
    short, long = section.factors("short_factor"), section.factors("long_factor")
    for name, factors in (("short_factor", short), ("long_factor", long)):
        if len(factors) != dim // 2:
            raise CheckpointError(f"{section.where}: {name}: expected {dim // 2} numbers, got {len(factors)}")
    amplitude = math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    return RotaryConfig(
        base,
        RotaryScaling.FACTORS,
        original_max_position=original,
        factors=short,
        long_factors=long,
        amplitude=section.factor("attention_factor", amplitude),
    )
