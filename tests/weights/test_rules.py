from __future__ import annotations

import pytest

from unicorn_async.config import WeightScheme
from unicorn_async.tensor import DType, QuantFormat
from unicorn_async.weights.rules import WeightKind, device_type, largest_value

KEPT = "F32 F16 BF16"
TABLE = {  # as in the module's docstring: for vectors, tables, other matrices and latents' in F32, F16 and BF16
    WeightScheme.AUTO: ("F32 F32 F32", "F32 F16 BF16", "F32 F16 BF16", KEPT),
    WeightScheme.F16: ("F32 F32 F32", "F16 F16 F16", "F16 F16 F16", KEPT),
    WeightScheme.INT8: ("F32 F32 F32", "int8 int8 int8", "int8 int8 int8", KEPT),
    WeightScheme.INT4: ("F32 F32 F32", "int8 int8 int8", "int4 int4 int4", KEPT),
    WeightScheme.NF4: ("F32 F32 F32", "int8 int8 int8", "nf4 nf4 nf4", KEPT),
}


@pytest.mark.parametrize("scheme", WeightScheme)
def test_every_kind_has_its_rule(scheme: WeightScheme) -> None:
    for kind, expected in zip(WeightKind, TABLE[scheme], strict=True):
        found = [device_type(kind, source, scheme).value for source in (DType.F32, DType.F16, DType.BF16)]
        assert found == expected.split()


@pytest.mark.parametrize("kind", [WeightKind.TABLE, WeightKind.MATRIX, WeightKind.KEPT])
def test_blocks_stay_what_they_are(kind: WeightKind) -> None:
    assert device_type(kind, QuantFormat.Q4_K, WeightScheme.AUTO) is QuantFormat.Q4_K


def test_every_type_has_a_largest_value() -> None:
    assert [largest_value(kind) for kind in (DType.F16, QuantFormat.INT4)] == [65504.0, 65000.0]
    assert 65504 < largest_value(DType.BF16) < largest_value(DType.F32)
