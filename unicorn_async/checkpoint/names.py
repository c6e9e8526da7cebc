"""Tensor names as checkpoints have them, and the one layout that the models know."""

from __future__ import annotations

_LANGUAGE_PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
PREDICTOR = "mtp."  # leads the tensors that predict more than the next token, where they are no layer's
_OTHER_PARTS = (
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "image_newline",
    PREDICTOR,
    "mtp_",
    "multi_modal_projector.",
    "vision_embed_tokens.",
    "vision_model.",
    "vision_tower.",
    "visual.",
)


def canonical_name(name: str) -> str | None:
    """Return a tensor's name in the text-only layout (`model.layers.…`, `lm_head.…`).

    None for vision and audio, and for what predicts more than the next token.
    Multimodal checkpoints put the language model under `language_model.` (older) or `model.language_model.` (newer).
    """
    if name.removeprefix("model.").startswith(_OTHER_PARTS):
        return None
    for prefix, replacement in _LANGUAGE_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name
