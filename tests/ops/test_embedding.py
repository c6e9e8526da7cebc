from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.linear_case import weights
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.listing import KernelListing
from unicorn_async.ops.embedding import embed
from unicorn_async.tensor import DType, QuantFormat, QuantTensor, Tensor

if TYPE_CHECKING:
    from tests.ops.arrays import Arrays
    from unicorn_async.gpu.device import Device
    from unicorn_async.tensor import ElementType

VOCAB = 37


@pytest.mark.parametrize(
    ("element", "columns"),
    [
        *((dtype, columns) for dtype in DType for columns in (8, 72, 640)),
        (QuantFormat.Q8_0, 32),
        (QuantFormat.Q4_0, 2080),
        (QuantFormat.Q6_K, 768),
    ],
    ids=lambda value: getattr(value, "value", value),
)
def test_rows_of_literal_ids_and_of_sampled_tokens_are_scaled(
    device: Device, arrays: Arrays, element: ElementType, columns: int
) -> None:
    table, exact = weights(arrays, VOCAB, columns, element)
    last_token = arrays.put(np.array([5, 36, 11], np.uint32))
    token_ids = arrays.put(np.array([0, 36, -1, -2, -3, 7], np.int32))
    out = arrays.poisoned(6, columns)

    arrays.run(
        lambda rec: embed(
            rec,
            device.kernels,
            table=table,
            token_ids=token_ids.address,
            last_token=last_token.address,
            out=out.tensor,
            scale=3.7,
        )
    )

    np.testing.assert_allclose(out.values, exact[[0, 36, 5, 36, 11, 7]] * 3.7, rtol=1e-6)


@pytest.mark.parametrize("element", [DType.BF16, QuantFormat.Q4_0, QuantFormat.Q6_K], ids=lambda kind: kind.value)
@pytest.mark.parametrize(("first", "columns"), [(0, 32), (288, 64), (512, 256)])
def test_a_part_of_each_row_is_read(
    device: Device, arrays: Arrays, element: ElementType, first: int, columns: int
) -> None:
    table, exact = weights(arrays, VOCAB, 768, element)
    token_ids, out = arrays.put(np.array([3, 36], np.int32)), arrays.poisoned(2, columns)
    arrays.run(
        lambda rec: embed(
            rec, device.kernels, table=table, token_ids=token_ids.address, last_token=0, out=out.tensor, first=first
        )
    )
    np.testing.assert_allclose(out.values, exact[[3, 36], first : first + columns], rtol=1e-6)
    with pytest.raises(ConfigError, match=f"got {columns} at {768 - columns + 32}"):
        arrays.run(
            lambda rec: embed(
                rec,
                device.kernels,
                table=table,
                token_ids=0,
                last_token=0,
                out=out.tensor,
                first=768 - columns + 32,
            )
        )


@pytest.mark.parametrize("element", [DType.F16, QuantFormat.Q8_0], ids=lambda element: element.value)
def test_an_id_outside_of_the_vocabulary_reads_row_0(device: Device, arrays: Arrays, element: ElementType) -> None:
    table, exact = weights(arrays, VOCAB, 32, element)
    last_token = arrays.put(np.array([0xFFFFFFFF], np.uint32))
    token_ids = arrays.put(np.array([VOCAB, -1], np.int32))
    out = arrays.poisoned(2, 32)
    arrays.run(
        lambda rec: embed(
            rec,
            device.kernels,
            table=table,
            token_ids=token_ids.address,
            last_token=last_token.address,
            out=out.tensor,
        )
    )
    np.testing.assert_array_equal(out.values, exact[[0, 0]].astype(np.float32))


@pytest.mark.parametrize(
    ("table", "columns", "error", "message"),
    [
        (Tensor(0, (VOCAB, 12), DType.F16), 12, UnsupportedModelError, "a multiple of 8, got 12"),
        (QuantTensor(0, (VOCAB, 96), QuantFormat.NF4), 96, UnsupportedModelError, "a multiple of 64 for nf4, got 96"),
        (Tensor(0, (VOCAB,), DType.F16), 8, ConfigError, "expected two dimensions"),
        (Tensor(0, (VOCAB, 8), DType.F16), 16, ConfigError, "got 16 at 0"),
    ],
)
def test_tables_that_no_kernel_reads_are_refused(
    device: Device, arrays: Arrays, table: Tensor | QuantTensor, columns: int, error: type[Exception], message: str
) -> None:
    out = Tensor(0, (1, columns), DType.F32)
    with pytest.raises(error, match=message):
        arrays.run(lambda rec: embed(rec, device.kernels, table=table, token_ids=0, last_token=0, out=out))


def test_tables_that_lie_alike_have_one_kernel() -> None:
    listing = KernelListing()
    for kind in (QuantFormat.INT4, QuantFormat.Q4_0):
        out = Tensor(0, (1, 64), DType.F32)
        embed(listing, listing, table=QuantTensor(0, (8, 64), kind), token_ids=0, last_token=0, out=out)
    assert [dispatch.request.name for dispatch in listing.take()] == ["embed_quant_q4", "embed_quant_q4"]
