"""Types that llama.cpp's mixes give to a model's matrices, where a file has more than one. Pure.

The rules are those of llama.cpp (`llama_tensor_get_type_impl` in src/llama-quant.cpp at 007dbbf, 2026) for models
without a rule of their own there. In Q4_K_M the values of attention, and what leads out of a feed-forward network, are
Q6_K in half of the layers: in the first and the last eighth, and in each third between them. In Q3_K_M values are Q5_K
in two layers, what leads out of networks in a sixteenth of them, and both Q4_K in all others, as what leads out of
attention is. The output head is Q6_K in each, and so are embeddings that serve as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from unicorn_async.weights.wanted import WantedTensor

MIXES = {"Q3_K_M": "Q3_K", "Q4_K_M": "Q4_K"}  # of most matrices
_VALUES = ("v_proj.weight", "in_proj_qkv.weight")  # of linear attention with its queries and keys
_DOWN, _OUT = "down_proj.weight", ("o_proj.weight",)


def mixed_type(mix: str, want: WantedTensor, num_layers: int, *, is_tied: bool) -> str:
    """Return the type that a matrix has in a mix, by its name and its layer."""
    plain = MIXES[mix]
    if want.kind is WeightKind.TABLE:
        return "Q6_K" if is_tied or want.layer == num_layers else plain
    is_down, is_value = want.name.endswith(_DOWN), want.name.endswith(_VALUES)
    if mix == "Q4_K_M":
        return "Q6_K" if (is_down or is_value) and _has_more_bits(want.layer, num_layers) else plain
    if is_value:
        return "Q5_K" if want.layer < 2 else "Q4_K"
    if is_down:
        return "Q5_K" if want.layer < num_layers // 16 else "Q4_K"
    return "Q4_K" if want.name.endswith(_OUT) else plain


def _has_more_bits(layer: int, num_layers: int) -> bool:
    first = num_layers // 8
    return layer < first or layer >= 7 * num_layers // 8 or (layer - first) % 3 == 2
