"""Models as shapes: what a checkpoint of a type would be loaded as, without a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.source_tensor import SourceTensor
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError
from unicorn_async.models.registry import model_spec
from unicorn_async.weights.plan import make_plan
from unicorn_async.weights.rules import WeightKind

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from make_checkpoint import SHAPES, config
from make_gguf import BLOCKS, EMBEDDINGS

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.plan import LoadPlan, WantedTensor

TYPES = ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "int4", "nf4")


@dataclass(frozen=True, slots=True)
class Model:
    """What a model is made of, and what its weights become on the device."""

    name: str
    spec: ModelSpec
    plan: LoadPlan

    @classmethod
    def find(cls, name: str, scheme: WeightScheme = WeightScheme.AUTO) -> Model:
        """Read a checkpoint's headers, or make up those of SHAPE:TYPE.

        Raises:
            ConfigError, CheckpointError: there is no such model, or it can't be used.
        """
        shape, _, kind = name.partition(":")
        if shape not in SHAPES or Path(name).exists():
            files = ModelFiles.read(name, scheme)
            return cls(name, files.config, files.plan)
        if kind not in TYPES or scheme is not WeightScheme.AUTO:
            raise ConfigError(f"{name}: expected {shape}: and one of {', '.join(TYPES)}")
        spec = model_spec(config(SHAPES[shape]))
        wanted = spec.wanted_tensors()
        own = kind if kind in BLOCKS else "F16"
        if own == kind:
            checkpoint = _checkpoint(wanted, own, EMBEDDINGS.get(kind, kind))
        else:
            checkpoint, scheme = _checkpoint(wanted, own, own), WeightScheme(kind)
        return cls(name, spec, make_plan(checkpoint, wanted, scheme=scheme))


def _checkpoint(wanted: tuple[WantedTensor, ...], matrices: str, tables: str) -> Checkpoint:
    types = {WeightKind.VECTOR: "F32", WeightKind.MATRIX: matrices, WeightKind.TABLE: tables}
    return Checkpoint(
        path=Path("made"),
        config={},
        files=(Path("made"),),
        tensors={want.name: _source(want, types[want.kind]) for want in wanted},
        skipped=(),
    )


def _source(want: WantedTensor, kind: str) -> SourceTensor:
    values, size, _ = BLOCKS[kind]
    return SourceTensor(want.name, kind, want.file_shape, 0, 0, prod(want.shape) // values * size)
