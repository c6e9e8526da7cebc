"""The plans that a product may be given on a device: the rules' own, and others that may be found to be faster there.

Every candidate reads its activations in the form that the rules chose, and leaves the same output, so that one may take
another's place without a change around it. Pure: needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as combinations
from typing import TYPE_CHECKING

from unicorn_async.config import Activation
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.tuned import Launch
from unicorn_async.ops.linear_held_plan import MAX_HELD, HeldTuning, can_hold, fetches_ahead, held_plan
from unicorn_async.ops.linear_input import MAX_PARTIALS, MAX_SPLIT_TILES, InputForm
from unicorn_async.ops.linear_plan import (
    FORMATS,
    NARROW_FEATURE,
    TileTuning,
    VecTuning,
    coopmat_plan,
    coopmat_shared_bytes,
    cut_of,
    known_subgroup_size,
    linear_options,
    many_plan,
    plan_linear,
    software_passes,
    vec_plan,
    work_of,
)
from unicorn_async.ops.linear_quant_plan import (
    QuantVecTuning,
    fragment_plan,
    plan_linear_quant,
    quant_vec_plan,
)
from unicorn_async.ops.quant_tiles import NARROW_TOKENS, FragmentTuning
from unicorn_async.tensor import QUANT_BLOCK, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.listing import ListedDispatch
    from unicorn_async.gpu.tuned import Work
    from unicorn_async.ops.linear_plan import LinearPlan, Options, Tile
    from unicorn_async.tensor import DType, ElementType

_DENSE = {name: dtype for dtype, name in FORMATS.items()}
_QUANTISED = {kind.layout.name: kind for kind in reversed(QuantFormat)}  # of equal layouts one; kernels see no other
WEIGHTS = (*_DENSE, *_QUANTISED)  # names of weights' types, as in the names of kernels

_GPU_TOKENS = (1, 2, 4, 8, 16, 32)
_SOFTWARE_TOKENS = (1, 2, 4, 8, 16)
_MAX_SUMS, _MAX_QUANT_SUMS = 64, 32  # of a lane, on GPUs
_MAX_SOFTWARE_SUMS = 64  # more are slow to compile, and leave no registers
_MAX_BLOCKS = 8  # of quantised weights that a lane has under way, where it has two of a row
_MAX_HELD_CODES = 16  # the same for linear_quant_held
_MANY_TILES = ((64, 64, 16, 16), (128, 64, 16, 16), (32, 64, 8, 16))  # tokens and rows; parts along them
_MIN_MANY_TOKENS = 16
# By a tile's tokens: rows, parts along tokens and along rows, columns, buffers.
_COOPMAT_TILES = {
    16: ((64, 1, 4, 64, 2), (64, 1, 4, 128, 1), (32, 1, 2, 128, 1)),
    32: ((64, 1, 4, 64, 2), (64, 1, 4, 128, 1), (128, 1, 4, 128, 1)),
    64: ((64, 2, 2, 64, 1), (64, 1, 4, 64, 1), (128, 1, 4, 64, 1)),
    128: ((128, 2, 2, 64, 1), (128, 2, 2, 32, 1), (64, 2, 2, 64, 1)),
}
_FRAGMENT_SUBGROUPS = ((1, 2), (1, 4), (2, 2))  # along rows and along K
_SPLITS = (2, 4, 8)
_MAX_WORKGROUPS = 2400  # that splits may make
_FRAGMENT_COLUMNS = 128


@dataclass(frozen=True, slots=True)
class Product:
    """y (tokens, n) = x (tokens, k) · weights (n, k)^T, with what its plan depends on.

    `weights` is one of WEIGHTS. `gated` and `blocked` as for `plan_linear_quant`.
    """

    weights: str
    tokens: int
    n: int
    k: int
    gated: bool = False
    blocked: bool = False

    @property
    def element(self) -> ElementType:
        """The weights' type; of those that lie alike on the device one.

        Raises:
            ConfigError: no kernel's name has the name of this type.
        """
        found = _DENSE.get(self.weights) or _QUANTISED.get(self.weights)
        if found is None:
            raise ConfigError(f"weights {self.weights!r}: expected one of {', '.join(WEIGHTS)}")
        return found

    @classmethod
    def of(cls, element: ElementType, tokens: int, n: int, k: int) -> Product:
        """Name the product with weights (n, k) of a type."""
        name = element.layout.name if isinstance(element, QuantFormat) else FORMATS[element]
        return cls(name, tokens, n, k)

    @classmethod
    def listed(cls, dispatch: ListedDispatch) -> Product | None:
        """Return the product that a dispatch of a dry run computes; None where it is none."""
        name, constants, fields = dispatch.request.name, dispatch.request.constants, dispatch.fields
        if not name.startswith("linear_"):
            return None
        weights = next(kind for kind in WEIGHTS if name.endswith(f"_{kind}"))
        k = fields["k"] if "k" in fields else fields["blocks"] * QUANT_BLOCK
        gated, blocked = (bool(constants.get(option, False)) for option in ("GATED", "BLOCKED"))
        return cls(weights, int(fields["tokens"]), int(fields["n"]), int(k), gated, blocked)

    def rule(self, info: DeviceInfo) -> LinearPlan:
        """The plan that the rules choose.

        Raises:
            UnsupportedModelError, ValueError: as `plan_linear` and `plan_linear_quant`.
        """
        activation = Activation.SILU if self.gated else None
        element, tokens, n, k = self.element, self.tokens, self.n, self.k
        if isinstance(element, QuantFormat):
            return plan_linear_quant(
                info, num_tokens=tokens, n=n, k=k, quant_format=element, activation=activation, blocked=self.blocked
            )
        if self.blocked:
            raise ValueError(f"linear: no kernel leaves the outputs of {self.weights} weights in blocks")
        return plan_linear(info, num_tokens=tokens, n=n, k=k, dtype=element, activation=activation)


def candidates(info: DeviceInfo, product: Product) -> tuple[LinearPlan, ...]:
    """All plans that the product may be given, the rules' own first; raises as `Product.rule`."""
    rule = product.rule(info)
    plans = (rule, *others(info, product, rule))
    return tuple({(plan.entry, cut_of(plan)): plan for plan in plans}.values())


def others(info: DeviceInfo, product: Product, rule: LinearPlan) -> Iterator[LinearPlan]:
    """What may take the place of the rules' plan, made one by one; the rules' own may be among them."""
    element = product.element
    options = linear_options(has_bias=False, has_soft_cap=False, activation=Activation.SILU if product.gated else None)
    if isinstance(element, QuantFormat):
        return _quantised(info, product, element, rule.form, options)
    return _dense(info, product, element, rule.form, options)


def choice(info: DeviceInfo, product: Product, plan: LinearPlan) -> tuple[Work, Launch]:
    """The entry of a device's `tuned` that gives a product one of its candidates; raises as `Product.rule`."""
    work = work_of(product.rule(info), product.tokens, product.n, product.k)
    return work, Launch(plan.entry, cut_of(plan), plan.grid, plan.subgroup_size)


def _dense(info: DeviceInfo, product: Product, dtype: DType, form: InputForm, options: Options) -> Iterator[LinearPlan]:
    tokens, n, k = product.tokens, product.n, product.k
    if form is InputForm.HALVES:
        entry = f"linear_many_coopmat_{FORMATS[dtype]}"
        yield from (coopmat_plan(info, tuning, tokens, n, entry, options) for tuning in _coopmat(info, tokens, n, k))
        return
    if tokens <= _GPU_TOKENS[-1] or info.is_software:
        for lanes, rows, together in _vec_cuts(info, product, (1, 2, 4, 8), _MAX_SUMS):
            tuning = VecTuning(together, lanes, rows)
            shared = -(-lanes * info.subgroup_size // known_subgroup_size(info)) * rows * together * 4
            if shared <= info.max_shared_memory:
                yield vec_plan(info, tuning, tokens, n, dtype, options)
    if not product.gated:
        entry = f"linear_many_{FORMATS[dtype]}"
        yield from (many_plan(tuning, tokens, n, entry, options) for tuning in _many(info, tokens))


def _quantised(
    info: DeviceInfo, product: Product, kind: QuantFormat, form: InputForm, options: Options
) -> Iterator[LinearPlan]:
    tokens, n, k, name = product.tokens, product.n, product.k, kind.layout.name
    if form is InputForm.FRAGMENTS:
        yield from (fragment_plan(info, tuning, tokens, n, kind, options) for tuning in _fragments(info, tokens, n, k))
        return
    if form is InputForm.HALVES:
        entry = f"linear_quant_coopmat_{name}"
        yield from (coopmat_plan(info, tuning, tokens, n, entry, options) for tuning in _coopmat(info, tokens, n, k))
        return
    if can_hold(info, tokens, k):
        yield from (
            held_plan(info, tuning, tokens, n, k, kind, options, blocked=product.blocked)
            for tuning in _held(info, product, kind)
        )
    if tokens <= _GPU_TOKENS[-1] or info.is_software:
        subgroups = (4, 8) if product.blocked else (1, 4)
        for lanes, rows, together in _vec_cuts(info, product, subgroups, _MAX_QUANT_SUMS):
            for unroll in (1, 2):
                if unroll == 1 or (info.subgroup_size * QUANT_BLOCK < k and rows * unroll <= _MAX_BLOCKS):
                    passes = software_passes(n // rows) if info.is_software else lanes
                    tuning = QuantVecTuning(together, lanes, rows, passes, unroll)
                    yield quant_vec_plan(info, tuning, tokens, n, kind, options, blocked=product.blocked)
    if not product.gated:
        entry = f"linear_quant_many_{name}"
        yield from (many_plan(tuning, tokens, n, entry, options, form) for tuning in _many(info, tokens))


def _held(info: DeviceInfo, product: Product, kind: QuantFormat) -> Iterator[HeldTuning]:
    """Cuts of linear_quant_held whose blocks of activations and of codes have room in a lane's registers."""
    lanes, rows = known_subgroup_size(info), (2, 4) if product.gated else (1, 2)
    sizes = (8, 16) if product.blocked else (4, 8)
    for split, subgroups, own, passes in combinations((1, 2, 4, 8), sizes, rows, (1, 3)):
        held = -(-product.k // (QUANT_BLOCK * lanes * split))
        fits = product.tokens * held <= MAX_HELD and own * held <= _MAX_HELD_CODES
        useful = 4 * product.k >= 3 * QUANT_BLOCK * lanes * split * held  # for most of the lanes
        if fits and useful and split <= subgroups and subgroups * lanes <= info.max_workgroup_invocations:
            yield HeldTuning(product.tokens, subgroups, split, own, passes)
            if fetches_ahead(product.tokens, held, kind):
                yield HeldTuning(product.tokens, subgroups, split, own, passes, ahead=True)


def _vec_cuts(
    info: DeviceInfo, product: Product, subgroups: tuple[int, ...], max_sums: int
) -> Iterator[tuple[int, int, int]]:
    """Subgroups of a workgroup, rows, and tokens that share a read of the weights, for the vec kernels.

    On the CPU a workgroup is one subgroup, and half of the tokens may be better, for they take half of the registers.
    """
    sizes: tuple[int, ...] = _GPU_TOKENS
    rows: tuple[int, ...] = (1, 2, 4, 8)
    if info.is_software:
        sizes, rows, subgroups, max_sums = _SOFTWARE_TOKENS, (2, 4, 8, 16), (1,), _MAX_SOFTWARE_SUMS
    most = next((size for size in sizes if product.tokens <= size), sizes[-1])
    tokens = (most, most // 2) if info.is_software and most > 1 else (most,)
    for lanes, own, together in combinations(subgroups, rows, tokens):
        has_lanes = lanes * info.subgroup_size <= info.max_workgroup_invocations
        if own * together <= max_sums and has_lanes and (own > 1 or not product.gated):
            yield lanes, own, together


def _many(info: DeviceInfo, tokens: int) -> Iterator[TileTuning]:
    """Tiles of linear_many and linear_quant_many; on the CPU their barriers cost more than they save."""
    for tile_t, tile_n, parts_t, parts_n in _MANY_TILES:
        if (
            not info.is_software
            and tokens >= max(_MIN_MANY_TOKENS, tile_t // 2)
            and parts_t * parts_n <= info.max_workgroup_invocations
        ):
            yield TileTuning(tokens, tile_t, tile_n, parts_t, parts_n)


def _coopmat(info: DeviceInfo, tokens: int, n: int, k: int) -> Iterator[TileTuning]:
    for tile_t, tiles in _COOPMAT_TILES.items():
        if tile_t >= 2 * max(tokens, 16) or tile_t < min(tokens, 64):
            continue
        for tile_n, parts_t, parts_n, tile_k, buffers in tiles:
            tile = TileTuning(tokens, tile_t, tile_n, parts_t, parts_n, tile_k, buffers)
            if coopmat_shared_bytes(tile) <= info.max_shared_memory:
                for splits in _splits(tile, tokens, n, k // (2 * tile_k)):
                    yield TileTuning(tokens, tile_t, tile_n, parts_t, parts_n, tile_k, buffers, splits)


def _fragments(info: DeviceInfo, tokens: int, n: int, k: int) -> Iterator[FragmentTuning]:
    parts_t = 1 if tokens <= 16 else 2 if tokens <= 32 else 4
    narrow = tokens <= NARROW_TOKENS and NARROW_FEATURE in info.features
    size = 8 if narrow else 16
    for parts_n, (along_n, along_k) in combinations((1, 2, 4), _FRAGMENT_SUBGROUPS):
        if parts_t * parts_n <= 8:
            cut = FragmentTuning(tokens, parts_t, parts_n, along_n, along_k, fragment_tokens=size)
            for splits in _splits(cut, tokens, n, k // (2 * _FRAGMENT_COLUMNS * along_k)):
                yield replace(cut, splits=splits)


def _splits(tile: Tile, tokens: int, n: int, most: int) -> Iterator[int]:
    """Into how many parts K may be cut, `most` at most unless it is one, with room for what they leave each other."""
    tiles = -(-tokens // tile.tile_t) * -(-n // tile.tile_n)
    room = min(most, _MAX_WORKGROUPS // tiles, MAX_PARTIALS // (tiles * tile.tile_t * tile.tile_n))
    yield 1
    if tiles <= MAX_SPLIT_TILES:
        yield from (splits for splits in _SPLITS if splits <= room)
