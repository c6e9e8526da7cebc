"""Models as shapes: what a checkpoint of a type would be loaded as, without a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.file_traits import FileTraits
from unicorn_async.checkpoint.source_tensor import SourceTensor
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError
from unicorn_async.models.registry import model_spec
from unicorn_async.packing import Codes, Packing, Plane, PlaneUse
from unicorn_async.tensor import QUANT_BLOCK
from unicorn_async.weights.plan import make_plan
from unicorn_async.weights.rules import WeightKind

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import gguf_blocks
from checkpoint_tensors import config
from gguf_model import EMBEDDINGS
from model_shapes import SHAPES
from rdna3_mixes import MIXES, mixed_type
from rdna3_shapes import CONFIGS, LINEAR

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.plan import LoadPlan
    from unicorn_async.weights.wanted import WantedTensor

PACKED = {"F8_E4M3": Codes.E4M3, "uint4": Codes.NIBBLES}  # of matrices, beside embeddings and a head in F16
TYPES = (
    *("F16", "Q8_0", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ1_S", "IQ2_XS", "IQ3_XXS", "IQ3_S", "IQ4_XS"),
    *("BF16", "Q4_1", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL", "int4", "nf4", *PACKED),
)
MXFP4 = "MXFP4"  # of experts; what else there is has Q8_0
MODELS = {**{name: config(shape) for name, shape in (SHAPES | LINEAR).items()}, **CONFIGS}
BLOCKS = gguf_blocks.BLOCKS | {"BF16": (1, 2, 30), "Q4_1": (32, 20, 3), "Q5_1": (32, 24, 7), "Q5_K": (256, 176, 13)}
OTHERWISE = gguf_blocks.OTHERWISE | {"Q5_K": "Q5_1"}
# What GGUF files do to the tensors of any family.
_GGUF = FileTraits(
    norms_hold_one=True,
    are_experts_apart=True,
    are_value_heads_tiled=True,
    are_gates_apart=True,
    has_decay_rates=True,
    are_group_norms_stacked=True,
    are_latent_heads_split=True,
)


@dataclass(frozen=True, slots=True)
class Model:
    """What a model is made of, and what its weights become on the device."""

    name: str
    spec: ModelSpec
    plan: LoadPlan

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(dest.name.endswith("experts_down") for dest in self.plan.destinations)

    @classmethod
    def find(cls, name: str, scheme: WeightScheme = WeightScheme.AUTO) -> Model:
        """Read a checkpoint's headers, or make up those of SHAPE:TYPE.

        Raises:
            ConfigError, CheckpointError: there is no such model, or it can't be used.
        """
        shape, _, kind = name.partition(":")
        if shape not in MODELS or Path(name).exists():
            files = ModelFiles.read(name, scheme)
            return cls(name, files.config, files.plan)
        types = (*TYPES, *MIXES, *([MXFP4] if "num_local_experts" in MODELS[shape] else []))
        if kind not in types or scheme is not WeightScheme.AUTO:
            raise ConfigError(f"{name}: expected {shape}: and one of {', '.join(types)}")
        own = kind if kind in BLOCKS or kind in MIXES else "F16"
        spec = made_spec(shape)
        wanted = spec.wanted_tensors()
        scheme = WeightScheme.AUTO if own == kind or kind in PACKED else WeightScheme(kind)
        return cls(
            name, spec, make_plan(made_checkpoint(wanted, kind if kind in PACKED else own), wanted, scheme=scheme)
        )


def made_spec(shape: str) -> ModelSpec:
    """Return what a model of a shape is made of."""
    return model_spec(MODELS[shape], traits=_GGUF)


def made_checkpoint(wanted: tuple[WantedTensor, ...], kind: str) -> Checkpoint:
    """Return what a file of a type would say of its tensors."""
    plain = "Q8_0" if kind == MXFP4 else kind
    table = "F16" if kind in PACKED else EMBEDDINGS.get(plain, plain)
    types = {WeightKind.VECTOR: "F32", WeightKind.MATRIX: plain, WeightKind.TABLE: table, WeightKind.KEPT: plain}
    num_layers = max(want.layer for want in wanted)
    is_tied = not any(want.is_table and want.layer == num_layers for want in wanted)

    def type_of(want: WantedTensor) -> str:
        if kind in MIXES and want.kind is not WeightKind.VECTOR:
            return mixed_type(kind, want, num_layers, is_tied=is_tied)
        return kind if ".experts." in want.name else types[want.kind]

    return Checkpoint(
        path=Path("made"),
        config={},
        files=(Path("made"),),
        tensors={want.name: _source(want, type_of(want)) for want in wanted},
        skipped=(),
    )


def _source(want: WantedTensor, kind: str) -> SourceTensor:
    kind = "F32" if want.kind is WeightKind.VECTOR else kind
    if kind in PACKED:
        scales = Plane(PlaneUse.SCALES, want.name, "F32", 0, 0, 4, 1, want.shape[0], want.shape[-1])
        packing = Packing(PACKED[kind], (scales,))
        nbytes = prod(want.shape) // QUANT_BLOCK * packing.codes.source_bytes
        return SourceTensor(want.name, kind, want.file_shape, 0, 0, nbytes, packing=packing)
    if want.shape[-1] % BLOCKS[kind][0]:
        kind = OTHERWISE.get(kind, "F16")
    values, size, _ = BLOCKS[kind]
    return SourceTensor(want.name, kind, want.file_shape, 0, 0, prod(want.shape) // values * size)
