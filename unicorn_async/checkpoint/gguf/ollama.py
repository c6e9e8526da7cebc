"""Gemma 3 as Ollama's own converters write it: without keys that llama.cpp's has, and with the projector inside.

Source: Ollama's `convert_gemma3.go`, and what its `model_text.go` (2025) puts right when it opens such a file; the
models' config.json, of which the files keep a part.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.plain_strings import PlainStrings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.gguf.keys import GgufConfig

NORM_EPS = 1e-6
_GLOBAL_BASE, _LOCAL_BASE = "rope.global.freq_base", "rope.local.freq_base"
_KEYS = (_GLOBAL_BASE, _LOCAL_BASE, "mm.tokens_per_image", "vision.block_count")
_PROJECTOR = ("v.", "mm.")
# By their numbers of layers: 4B, 12B and 27B have positions scaled by 8 in global layers; 270M and 1B have not.
_SCALED, _NOT_SCALED = (34, 48, 62), (18, 26)
_SCALE = 8.0
_MADE_UP_CAP = 30.0  # of logits: what the first converter wrote where config.json has none, as it has for no Gemma 3
_ONE_B_LAYERS = 26
_BY_TOKEN = ("tokens", "scores", "token_type")
# Ollama has templates in a file of their own. A system message goes before the first one of the user.
_TEMPLATE = (
    "{{ bos_token }}{%- set start = namespace(text='') -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{%- set start.text = message.content | trim + '\\n\\n' -%}"
    "{%- else -%}"
    "{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}"
    "{{- start.text if message.role == 'user' else '' -}}{{- message.content | trim + '<end_of_turn>\\n' -}}"
    "{%- if message.role == 'user' -%}{%- set start.text = '' -%}{%- endif -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"
)


def is_ollama_gemma3(config: GgufConfig) -> bool:
    """Whether Ollama wrote the file, by keys or tensors that no other converter writes."""
    if config.architecture != "gemma3":
        return False
    return any(config.get(key) is not None for key in _KEYS) or any(
        name.startswith(_PROJECTOR) for name in config.tensors
    )


def is_projector(name: str, config: GgufConfig) -> bool:
    """Whether a tensor belongs to the vision model, which such a file has inside, and which nothing here reads."""
    return name.startswith(_PROJECTOR) and is_ollama_gemma3(config)


def ollama_gemma3_keys(config: GgufConfig) -> dict[str, object]:
    """Return keys of config.json that such a file has under other names, leaves out, or has wrong.

    Raises:
        UnsupportedModelError: what it leaves out is not known of a model with so many layers, or it has a scaling.
    """
    base, local = config.number("rope.freq_base"), config.number("rope.freq_base_swa")
    cap = config.number("final_logit_softcapping")
    is_made_up = config.get(_GLOBAL_BASE) is not None or config.num_layers == _ONE_B_LAYERS
    return {
        "rope_theta": config.number(_GLOBAL_BASE) if base is None else base,
        "rope_local_base_freq": config.number(_LOCAL_BASE) if local is None else local,
        "rope_scaling": {"rope_type": "linear", "factor": factor} if (factor := _factor(config)) != 1.0 else None,
        "final_logit_softcapping": None if cap == _MADE_UP_CAP and is_made_up else cap or None,
    }


def _factor(config: GgufConfig) -> float:
    kind, factor = config.text("rope.scaling.type"), config.number("rope.scaling.factor")
    if kind not in (None, "linear"):
        raise config.unsupported("rope.scaling.type", f"{kind!r} in a file of Ollama's own converter")
    if factor is not None:
        return factor
    if (layers := config.num_layers) in _SCALED:
        return _SCALE
    if layers not in _NOT_SCALED:
        raise config.unsupported(
            "rope.scaling.factor",
            f"is missing in a file of Ollama's own converter, and not known for {layers} layers; take a GGUF file that"
            " llama.cpp's converter wrote (`unicorn pull ORG/REPO:Q4_K_M`)",
        )
    return 1.0


def ollama_gemma3_metadata(config: GgufConfig, metadata: Mapping[str, GgufValue]) -> dict[str, GgufValue]:
    """Return the metadata with a chat template, and without tokens for which the embeddings have no rows.

    Those are for images. No text of a Gemma gets a space in front, which such a file does not say.
    """
    result: dict[str, GgufValue] = {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": _TEMPLATE,
        **metadata,
    }
    rows = config.tensors["token_embd.weight"].shape[0]
    for name in _BY_TOKEN:
        values = result.get(key := f"tokenizer.ggml.{name}")
        if isinstance(values, array) and len(values) > rows:
            result[key] = values[:rows]
        elif isinstance(values, tuple | PlainStrings) and len(values) > rows:
            result[key] = tuple(values)[:rows]
    return result
