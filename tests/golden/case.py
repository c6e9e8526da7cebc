"""What a golden model is: its config.json, and how its weights are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

JsonObject = dict[str, object]  # a config.json, as read

TOKENS: JsonObject = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "vocab_size": 512}
# The sizes of most cases.
PLAIN: JsonObject = {
    **TOKENS,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}
# Scores of deviation about 1.4, and attention as strong as the FFN in the residual stream.
PEAKED = {"q_proj": 1.2, "k_proj": 1.2, "v_proj": 2.0, "o_proj": 2.0, "down_proj": 1.5}


class Layout(Enum):
    """How a checkpoint names its tensors."""

    TEXT = "text"
    MULTIMODAL_OLD = "multimodal_old"  # language_model.model.layers…, vision_tower…
    MULTIMODAL_NEW = "multimodal_new"  # model.language_model.layers…, model.vision_tower…
    MULTIMODAL_FLAT = "multimodal_flat"  # model.layers…, visual…


@dataclass(frozen=True, slots=True)
class Case:
    """One golden model. Gains are a matrix's output deviation over its input's; they default to 1.

    `reference_keys` replace keys of config.json where transformers decides otherwise than an engine, that has to decide
    for all sequences at once.
    """

    name: str
    config: Mapping[str, object]
    reference: str  # the case whose logits and weights this one shares; its own name if it has its own
    layout: Layout = Layout.TEXT
    gains: Mapping[str, float] = field(default_factory=dict)  # last part of a module's name → gain
    norm_gains: Mapping[str, float] = field(default_factory=dict)  # a norm's module name → factor that it multiplies by
    reference_keys: Mapping[str, object] = field(default_factory=dict)

    @property
    def text_config(self) -> Mapping[str, object]:
        """The part of config.json that describes the decoder."""
        text = self.config.get("text_config", self.config)
        assert isinstance(text, Mapping)
        return text
