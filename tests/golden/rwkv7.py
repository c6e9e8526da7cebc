"""A golden RWKV-7, and its tensors as Hugging Face checkpoints have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from .case import TOKENS, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_SHIFTED = ("r", "w", "k", "v", "a", "g")
_RANKS = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim", "g": "gate_low_rank_dim"}
_BIASES = {"w": (2.0, -1.0), "a": (1.0, 0.0), "v": (1.0, 0.0)}  # deviations and means

RWKV7 = Case(
    "rwkv7",
    {
        **TOKENS,
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "attn": None,
        "hidden_size": 128,
        "intermediate_size": 192,
        "hidden_ratio": 4.0,
        "hidden_act": "sqrelu",
        "num_hidden_layers": 3,
        "head_dim": 64,
        "num_heads": None,
        "value_dim": [128, 128, 128],
        "decay_low_rank_dim": 32,
        "a_low_rank_dim": 16,
        "v_low_rank_dim": 24,
        "gate_low_rank_dim": 40,
        "max_position_embeddings": 1024,
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "fuse_norm": False,
        "tie_word_embeddings": False,
    },
    "rwkv7",
    gains={"k_proj": 1.5, "o_proj": 1.5, "value": 1.5},
)


def rwkv7_tensors(case: Case, draw: Callable[..., Floats]) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor; `draw` gets a name, a shape, a deviation and a mean."""
    config = cast("Mapping[str, int]", case.config)
    hidden, vocab, width = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    head_dim = config["head_dim"]

    def matrix(name: str, rows: int, columns: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (rows, columns), gain / columns**0.5)

    def vector(name: str, deviation: float, mean: float, shape: tuple[int, ...] = (hidden,)) -> tuple[str, Floats]:
        return name, draw(f"{case.reference}/{name}", shape, deviation, mean)

    def norm(name: str) -> Iterator[tuple[str, Floats]]:
        yield vector(f"{name}.weight", 0.2, 1.0)
        yield vector(f"{name}.bias", 0.3, 0.0)

    yield "model.embeddings.weight", draw(f"{case.reference}/embed", (vocab, hidden), 1.0)
    yield from norm("model.layers.0.pre_norm")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield from norm(f"{prefix}attn_norm")
        for name in _SHIFTED:
            yield vector(f"{prefix}attn.x_{name}", 0.25, 0.5, (1, 1, hidden))
        for name in ("r", "k", "v", "o"):
            yield matrix(f"{prefix}attn.{name}_proj", hidden, hidden)
        for name, key in _RANKS.items():
            if name == "v" and layer == 0:
                continue
            inner = f"{prefix}attn.{name}_lora.lora"
            yield matrix(f"{inner}.0", config[key], hidden)
            yield matrix(f"{inner}.2", hidden, config[key])
            if name in _BIASES:
                yield vector(f"{inner}.2.bias", *_BIASES[name])
        yield vector(f"{prefix}attn.k_k", 0.3, 0.8)
        yield vector(f"{prefix}attn.k_a", 0.3, 1.0)
        yield vector(f"{prefix}attn.r_k", 0.3, 0.0, (hidden // head_dim, head_dim))
        yield from norm(f"{prefix}attn.g_norm")
        yield from norm(f"{prefix}ffn_norm")
        yield vector(f"{prefix}ffn.x_k", 0.25, 0.5)
        yield matrix(f"{prefix}ffn.key", width, hidden)
        yield matrix(f"{prefix}ffn.value", hidden, width)
    yield from norm("model.norm")
    yield matrix("lm_head", vocab, hidden)


_PARTS = {
    "pre_norm": "ln0",
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "attn.g_norm": "att.ln_x",
    "attn.r_proj": "att.receptance",
    "attn.k_proj": "att.key",
    "attn.v_proj": "att.value",
    "attn.o_proj": "att.output",
}
_WHOLE = {"model.embeddings": "emb", "lm_head": "head", "model.norm": "ln_out"}
_NETWORK = re.compile(r"attn\.([wavg])_lora\.lora\.([02])\.(weight|bias)")


def published(tensors: Iterable[tuple[str, Floats]]) -> Iterator[tuple[str, Floats]]:
    """Yield tensors with the names and the shapes that the family's authors give them."""
    for name, value in tensors:
        module, _, kind = name.rpartition(".")
        if module in _WHOLE:
            yield f"{_WHOLE[module]}.{kind}", value
            continue
        _, _, layer, part = name.split(".", 3)
        network, stem = _NETWORK.fullmatch(part), part.rpartition(".")[0]
        if network is not None:
            which, side, what = network.groups()
            number = 0 if what == "bias" else 1 if side == "0" else 2
            yield f"blocks.{layer}.att.{which}{number}", value.reshape(1, 1, -1) if what == "bias" else value.T.copy()
            if layer == "0" and which == "a":  # which nothing reads
                yield f"blocks.0.att.v{number}", value.reshape(1, 1, -1) if what == "bias" else value.T.copy()
        elif stem in _PARTS:
            yield f"blocks.{layer}.{_PARTS[stem]}.{kind}", value
        else:
            name = f"blocks.{layer}.{part.replace('attn.', 'att.')}"
            yield name, value.reshape(1, 1, -1) if value.ndim == 1 else value
