from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.embedding import embed, kernels_for
from unicorn_async.tensor import DType, Tensor

from .arrays import bf16, from_bf16

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Arrays

VOCAB = 37


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("columns", [8, 72, 640])
def test_rows_of_literal_ids_and_of_sampled_tokens_are_scaled(
    device: Device, arrays: Arrays, dtype: DType, columns: int
) -> None:
    rng = np.random.default_rng(columns)
    values = rng.standard_normal((VOCAB, columns)).astype(np.float32)
    stored = {DType.F32: values, DType.F16: values.astype(np.float16), DType.BF16: bf16(values)}[dtype]
    exact = (from_bf16(stored) if dtype is DType.BF16 else stored).astype(np.float64)
    table = arrays.put(stored)
    last_token = arrays.put(np.array([5, 36, 11], np.uint32))
    token_ids = arrays.put(np.array([0, 36, -1, -2, -3, 7], np.int32))
    out = arrays.poisoned(6, columns)

    arrays.run(
        lambda rec: embed(
            rec,
            device.kernels,
            table=table.tensor,
            token_ids=token_ids.address,
            last_token=last_token.address,
            out=out.tensor,
            scale=3.7,
        )
    )

    np.testing.assert_allclose(out.values, exact[[0, 36, 5, 36, 11, 7]] * 3.7, rtol=1e-6)


def test_an_id_outside_of_the_vocabulary_reads_row_0(device: Device, arrays: Arrays) -> None:
    table = arrays.put(np.arange(VOCAB * 8, dtype=np.float16).reshape(VOCAB, 8))
    last_token = arrays.put(np.array([0xFFFFFFFF], np.uint32))
    token_ids = arrays.put(np.array([VOCAB, -1], np.int32))
    out = arrays.poisoned(2, 8)
    arrays.run(
        lambda rec: embed(
            rec,
            device.kernels,
            table=table.tensor,
            token_ids=token_ids.address,
            last_token=last_token.address,
            out=out.tensor,
        )
    )
    np.testing.assert_array_equal(out.values, table.values[[0, 0]].astype(np.float32))


def test_a_hidden_size_that_is_no_multiple_of_8_is_refused(device: Device, arrays: Arrays) -> None:
    with pytest.raises(UnsupportedModelError, match="12"):
        arrays.run(
            lambda rec: embed(
                rec,
                device.kernels,
                table=Tensor(0, (VOCAB, 12), DType.F16),
                token_ids=0,
                last_token=0,
                out=Tensor(0, (1, 12), DType.F32),
            )
        )


def test_kernels_for_names_the_tables_pipeline() -> None:
    assert [kernels_for(dtype)[0].name for dtype in DType] == ["embed_f32", "embed_f16", "embed_bf16"]
