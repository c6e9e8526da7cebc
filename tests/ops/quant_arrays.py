"""Quantised tensors on a device, and their values as the device reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.ops.embedding import embed
from unicorn_async.ops.quantize import quantize, relayout
from unicorn_async.tensor import QuantFormat, QuantTensor, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .arrays import Arrays


def quant_tensor(arrays: Arrays, shape: tuple[int, int], quant_format: QuantFormat) -> QuantTensor:
    """Memory for a tensor, full of ones."""
    room = arrays.put(np.full(QuantTensor.size(shape, quant_format) + 256, 0xFF, np.uint8))
    return QuantTensor(-(-room.address // 256) * 256, shape, quant_format)


def relaid(arrays: Arrays, blocks: NDArray[np.uint8], shape: tuple[int, int], quant_format: QuantFormat) -> QuantTensor:
    """GGUF's blocks as a tensor, brought there in two parts."""
    tensor = quant_tensor(arrays, shape, quant_format)
    source = arrays.put(blocks)
    unit = quant_format.layout.unit
    half = len(blocks) // 4 * 2  # blocks of 17 bytes begin at an even one, too
    for first, count in ((0, half), (half, len(blocks) - half)):
        if count:
            arrays.run(
                lambda recorder, first=first, count=count: relayout(  # type: ignore[misc]
                    recorder,
                    arrays.device.kernels,
                    src=source.address + first * quant_format.source_bytes,
                    dst=tensor,
                    first_element=first * unit,
                    num_elements=count * unit,
                )
            )
    return tensor


def quantized(arrays: Arrays, values: NDArray[Any], quant_format: QuantFormat) -> QuantTensor:
    """Dense values, uint16 for the bits of bf16, quantised on the device."""
    rows, columns = values.shape
    tensor = quant_tensor(arrays, (rows, columns), quant_format)
    source = arrays.put(values).tensor
    arrays.run(
        lambda recorder: quantize(
            recorder,
            arrays.device.kernels,
            src=source.address,
            src_dtype=source.dtype,
            dst=tensor,
            first_element=0,
            num_elements=values.size,
        )
    )
    return tensor


def read_back(arrays: Arrays, tensor: QuantTensor) -> NDArray[np.float32]:
    """What every element stands for, as embedding rows are read."""
    rows, columns = tensor.shape
    ids = arrays.put(np.arange(rows, dtype=np.int32))
    out = arrays.poisoned(rows, columns)
    arrays.run(
        lambda recorder: embed(
            recorder,
            arrays.device.kernels,
            table=tensor,
            token_ids=ids.address,
            last_token=0,
            out=Tensor(out.address, (rows, columns), out.tensor.dtype),
        )
    )
    return out.values


def read_blocks(memory: NDArray[np.uint8], rows: int, columns: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Activations in blocks: the codes of every element (rows, columns), and the scales (rows, columns / 32).

    The sums of codes that lie beside the scales must be right.
    """
    count = rows * columns
    groups = memory[:count].view(np.int8).reshape(rows, 2, columns // 32, 4, 4)[..., [0, 2, 1, 3]]
    codes = groups.transpose(0, 2, 1, 3, 4).reshape(rows, columns)
    records = memory[count : count + count // 4].view(np.uint32).reshape(rows, columns // 32, 2)
    sums = records[:, :, 1].copy().view(np.int16).reshape(rows, columns // 16)
    np.testing.assert_array_equal(sums, codes.reshape(rows, columns // 16, 16).sum(axis=2))
    return codes, records[:, :, 0].copy().view(np.float32)
