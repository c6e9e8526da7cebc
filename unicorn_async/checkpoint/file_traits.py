"""What of a model's computation only its files say, whose configuration has no key for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileTraits:
    """How weights were changed when they were converted to GGUF; a directory's are the defaults, whatever it says.

    But for what tensors' names say: with `are_experts_apart` each expert has matrices of its own, in a family that
    stacks those of all experts, and an FFN's gate lies apart from what it is for, where Granite 4 has both in one;
    `are_shifts_stacked` is of older directories, and `are_networks_turned` of those with the names that RWKV's authors
    give.

    `rope_factors` are divisors of the rotary frequencies, one a pair, in place of a scaling; empty = none.
    """

    norms_hold_one: bool = False  # norms that multiply by 1 + weight have the sum in the file
    is_qkv_fused: bool = False  # queries, keys and values are one tensor, in a family that has three
    are_experts_apart: bool = False
    are_value_heads_tiled: bool = False  # those of linear attention, so that neighbours have other heads of keys
    are_gates_apart: bool = False  # of linear attention, from what makes q, k and v, in a family that groups them
    are_expert_gates_apart: bool = False  # experts' gates have other types than what they are for, in some layer
    has_decay_rates: bool = False  # -exp of the logarithms that directories have
    are_group_norms_stacked: bool = False  # Mamba-2's, with a row for each group
    are_shifts_stacked: bool = False  # RWKV's mixes of a token with the one before it, in a layer's time mixing
    is_bonus_flat: bool = False  # RWKV's r_k, which has a row for each head elsewhere
    are_networks_turned: bool = False  # RWKV's small ones, with rows for columns
    are_latent_heads_split: bool = False  # latent attention's matrices of keys and of values are two
    rope_factors: tuple[float, ...] = ()


NO_TRAITS = FileTraits()
