"""Golden checkpoints as they are published quantised, and dense ones with the values that these stand for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tests.golden.cases import CASES
from tests.golden.checkpoints import encode, safetensors_bytes, weights

from .checkpoint_files import write_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    File = tuple[str, str, tuple[int, ...], bytes]  # name, type, shape and bytes of a tensor
    Packed = tuple[list[File], Floats]  # a matrix's tensors, and what they stand for
    Pack = Callable[[str, Floats], Packed]


class Groups(NamedTuple):
    """Integers of a matrix, and what they stand for."""

    codes: NDArray[np.int64]
    scales: Floats
    zeros: NDArray[np.int64]
    exact: Floats


E4M3 = np.array(
    [
        (-1 if code & 0x80 else 1)
        * ((code & 7) / 8 * 2.0**-6 if not code & 0x78 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3 & 15) - 7))
        for code in range(256)
    ],
    np.float32,
)  # of the codes 0x7f and 0xff it is not true: they are no numbers


def write_packed(
    name: str,
    folder: Path,
    quantization: Mapping[str, object],
    pack: Pack,
    *,
    kept: tuple[str, ...] = (),
    stacks: tuple[int, int] | None = None,
) -> tuple[Path, Path]:
    """Write a case with packed matrices and one with their values in float32; return both.

    Those of modules whose names have one of `kept` in them, embeddings and the output head stay dense, and so do those
    of experts in one tensor unless their blocks are `stacks`.
    """
    directory, dense = folder / "packed", folder / "dense"
    write_model(name, "float32", dense)
    write_model(name, "float16", directory)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = dict(quantization)
    (directory / "config.json").write_text(json.dumps(config))
    tensors: list[File] = []
    values: list[File] = []
    for key, value in weights(CASES[name]):
        if value.ndim == 3 and stacks is not None:
            packed, exact = fp8_stack(key, value, stacks)
            tensors += packed
            values.append((key, *encode(exact, "float32")))
            continue
        if "_proj" not in key or not key.endswith(".weight") or any(part in key for part in kept):
            tensors.append((key, *encode(value, "float16")))
            values.append((key, *encode(value, "float32")))
            continue
        packed, exact = pack(key.removesuffix(".weight"), value)
        tensors += packed
        values.append((key, *encode(exact.astype(np.float32), "float32")))
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    (dense / "model.safetensors").write_bytes(safetensors_bytes(values))
    return directory, dense


def file(name: str, dtype: str, values: NDArray[np.generic]) -> File:
    """A tensor of a file."""
    return name, dtype, values.shape, np.ascontiguousarray(values).tobytes()


def e4m3_codes(values: Floats) -> NDArray[np.uint8]:
    """The nearest codes."""
    order = np.argsort(E4M3[:0x7F], kind="stable")
    levels = E4M3[order]
    places = np.clip(np.searchsorted(levels, np.abs(values)), 1, len(levels) - 1)
    lower = np.abs(values) - levels[places - 1] < levels[places] - np.abs(values)
    return (order[places - lower] | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def spread(values: Floats, rows: int, columns: int, shape: tuple[int, int]) -> Floats:
    """Each value for a block of so many rows and columns, cut to a shape."""
    return np.repeat(np.repeat(values, rows, axis=0), columns, axis=1)[: shape[0], : shape[1]]


def fp8(rows: int, columns: int, suffix: str = "weight_scale_inv", scale_type: str = "float32") -> Pack:
    """FP8 with a scale for each block of so many rows and columns; 0 rows or columns: one for all of them."""

    def pack(stem: str, value: Floats) -> Packed:
        down, across = rows or len(value), columns or value.shape[1]
        blocks = np.array(
            [
                [np.abs(value[i : i + down, j : j + across]).max() / 448 for j in range(0, value.shape[1], across)]
                for i in range(0, len(value), down)
            ],
            np.float32,
        )
        dtype, shape, data = encode(blocks, scale_type)
        blocks = decoded(dtype, data).reshape(shape)
        scales = spread(blocks, down, across, value.shape)
        codes = e4m3_codes(np.clip(value / scales, -448, 448))
        if rows == columns == 0:
            shape = ()
        return [
            file(f"{stem}.weight", "F8_E4M3", codes),
            (f"{stem}.{suffix}", dtype, shape, data),
        ], E4M3[codes] * scales

    return pack


def fp8_stack(name: str, value: Floats, block: tuple[int, int]) -> Packed:
    """A stack of matrices in one tensor, with a scale for each block of so many rows and columns."""
    parts = [fp8(*block)(name, matrix) for matrix in value]
    codes, scales = (
        np.stack([np.frombuffer(tensors[i][3], kind) for tensors, _ in parts])
        for i, kind in ((0, np.uint8), (1, np.float32))
    )
    return [
        file(name, "F8_E4M3", codes.reshape(value.shape)),
        file(f"{name}_scale_inv", "F32", scales.reshape(len(value), *parts[0][0][1][2])),
    ], np.stack([exact for _, exact in parts])


def in_groups(value: Floats, group: int, steps: int, *, symmetric: bool, scale_type: str) -> Groups:
    """Codes of 0 to `steps` - 1, scales and zero points of groups of columns (0: of rows); any scheme would do."""
    parts = value.reshape(len(value), -1, group or value.shape[1])
    low, high = np.minimum(parts.min(axis=2), 0), np.maximum(parts.max(axis=2), 0)
    half = steps // 2
    wanted = np.maximum(high, -low) / (half - 1) if symmetric else (high - low) / (steps - 1)
    dtype, shape, data = encode(np.maximum(wanted, 1e-6).astype(np.float32), scale_type)
    scales = decoded(dtype, data).reshape(shape)
    zeros = np.full(shape, half) if symmetric else np.clip(np.rint(-low / scales), 0, steps - 1).astype(np.int64)
    codes = np.clip(np.rint(parts / scales[..., None]) + zeros[..., None], 0, steps - 1).astype(np.int64)
    exact = (codes - zeros[..., None]) * scales[..., None].astype(np.float64)
    return Groups(codes.reshape(value.shape), scales, zeros, exact.reshape(value.shape).astype(np.float32))


def decoded(dtype: str, data: bytes) -> Floats:
    """What a tensor's bytes stand for."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.float32 if dtype == "F32" else np.float16).astype(np.float32)


def words(codes: NDArray[np.int64], bits: int, axis: int, order: tuple[int, ...] = ()) -> NDArray[np.int32]:
    """Words of codes that follow each other along an axis, the first in the lowest bits, or at places of `order`."""
    count = 32 // bits
    moved = np.moveaxis(codes, axis, -1)
    padded = np.concatenate([moved, np.zeros((*moved.shape[:-1], -moved.shape[-1] % count), np.int64)], axis=-1)
    parts = padded.reshape(*padded.shape[:-1], -1, count).astype(np.uint32)
    places = np.array(order or range(count), np.uint32) * bits
    return np.moveaxis(np.bitwise_or.reduce(parts << places, axis=-1), -1, axis).view(np.int32)


def gptq(
    bits: int,
    group: int,
    *,
    symmetric: bool = True,
    version: int = 1,
    scale_type: str = "float16",
    act_order: bool = False,
) -> Pack:
    """GPTQ as AutoGPTQ and GPTQModel write it; zero points are one less in version 1.

    With `act_order` columns of a group lie anywhere, alike for all matrices of one input.
    """

    def pack(stem: str, value: Floats) -> Packed:
        columns = value.shape[1]
        order = np.arange(columns)
        if act_order:
            np.random.default_rng([columns, stem.endswith("o_proj")]).shuffle(order)
        value, places = value[:, order], np.argsort(order)
        found = in_groups(value, group, 1 << bits, symmetric=symmetric, scale_type=scale_type)
        # Version 1 has no way to say zero.
        zeros = found.zeros if version == 2 else np.maximum(found.zeros, 1) - 1
        exact = found.exact + np.repeat(
            (found.zeros - zeros - (version == 1)) * found.scales, group or columns, axis=1
        ).astype(np.float32)
        return [
            file(f"{stem}.qweight", "I32", words(found.codes[:, places].T, bits, 0)),
            file(f"{stem}.qzeros", "I32", words(zeros.T, bits, 1)),
            (f"{stem}.scales", *encode(found.scales.T, scale_type)),
            file(f"{stem}.g_idx", "I32", (places // (group or columns)).astype(np.int32)),
        ], exact[:, places]

    return pack


def awq(group: int) -> Pack:
    """AWQ as AutoAWQ writes it for its GEMM kernels."""
    order = (0, 4, 1, 5, 2, 6, 3, 7)

    def pack(stem: str, value: Floats) -> Packed:
        found = in_groups(value, group, 16, symmetric=False, scale_type="float16")
        return [
            file(f"{stem}.qweight", "I32", words(found.codes.T, 4, 1, order)),
            file(f"{stem}.qzeros", "I32", words(found.zeros.T, 4, 1, order)),
            (f"{stem}.scales", *encode(found.scales.T, "float16")),
        ], found.exact

    return pack


def compressed(bits: int, group: int, *, symmetric: bool = True, packed: bool = True) -> Pack:
    """compressed-tensors' integers as llm-compressor writes them."""

    def pack(stem: str, value: Floats) -> Packed:
        found = in_groups(value, group, 1 << bits, symmetric=symmetric, scale_type="bfloat16")
        tensors = [(f"{stem}.weight_scale", *encode(found.scales, "bfloat16"))]
        if packed:
            tensors.append(file(f"{stem}.weight_packed", "I32", words(found.codes, bits, 1)))
            tensors.append(file(f"{stem}.weight_shape", "I64", np.array(value.shape, np.int64)))
        else:
            tensors.append(file(f"{stem}.weight", "I8", (found.codes - 128).astype(np.int8)))
        if not symmetric:
            tensors.append(file(f"{stem}.weight_zero_point", "I32", words(found.zeros, bits, 0)))
        return tensors, found.exact

    return pack


NORMAL_FLOATS = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ],
    np.float32,
)


def nf4(*, nested: bool) -> Pack:
    """NormalFloat4 as bitsandbytes writes it; what the device makes of it has levels in 127ths and scales in halves."""

    def pack(stem: str, value: Floats) -> Packed:
        blocks = value.reshape(-1, 64)
        largest = np.abs(blocks).max(axis=1)
        state: dict[str, object] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": value.shape}
        name = f"{stem}.weight"
        scales = [file(f"{name}.absmax", "F32", largest)]
        if nested:
            levels = np.linspace(-1, 1, 256, dtype=np.float32)
            offset = float(largest.mean())
            factors = np.array([np.abs(part - np.float32(offset)).max() for part in _of(largest, 256)], np.float32)
            own = np.repeat(factors, 256)[: len(largest)]
            choices = np.abs((largest - np.float32(offset))[:, None] / own[:, None] - levels).argmin(axis=1)
            largest = levels[choices] * own + np.float32(offset)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            scales = [
                file(f"{name}.absmax", "U8", choices.astype(np.uint8)),
                file(f"{name}.nested_absmax", "F32", factors),
                file(f"{name}.nested_quant_map", "F32", levels),
            ]
        codes = np.abs(blocks[..., None] / largest[:, None, None] - NORMAL_FLOATS).argmin(axis=2).astype(np.uint8)
        pairs = codes.reshape(-1, 2)
        content = np.frombuffer(json.dumps(state).encode(), np.uint8)
        halves = (largest * np.float32(1 / 127)).astype(np.float16).astype(np.float32)
        exact = np.rint(NORMAL_FLOATS * 127)[codes] * halves[:, None]
        meant = NORMAL_FLOATS[codes] * largest[:, None]
        assert (np.abs(exact - meant) <= largest[:, None] * (1 / 270 + 2**-11)).all()
        return [
            file(name, "U8", pairs[:, :1] << 4 | pairs[:, 1:]),
            file(f"{name}.quant_map", "F32", NORMAL_FLOATS),
            file(f"{name}.quant_state.bitsandbytes__nf4", "U8", content),
            *scales,
        ], exact.reshape(value.shape)

    return pack


def _of(values: Floats, size: int) -> list[Floats]:
    return [values[start : start + size] for start in range(0, len(values), size)]
