"""Blocks of GGUF's types with random values."""

from __future__ import annotations

import numpy as np

BLOCKS = {  # values of a block, its bytes, the type's number
    "F32": (1, 4, 0),
    "F16": (1, 2, 1),
    "Q4_0": (32, 18, 2),
    "Q5_0": (32, 22, 6),
    "Q8_0": (32, 34, 8),
    "Q2_K": (256, 84, 10),
    "Q3_K": (256, 110, 11),
    "Q4_K": (256, 144, 12),
    "Q6_K": (256, 210, 14),
    "IQ2_XS": (256, 74, 17),
    "IQ3_XXS": (256, 98, 18),
    "IQ1_S": (256, 50, 19),
    "IQ4_NL": (32, 18, 20),
    "IQ3_S": (256, 110, 21),
    "IQ4_XS": (256, 136, 23),
    "MXFP4": (32, 17, 39),
}
FILE_TYPES = {  # numbers of files whose matrices are mostly of a type
    "F16": 1,
    "Q4_0": 2,
    "Q8_0": 7,
    "Q2_K": 10,
    "Q3_K": 12,
    "Q4_K": 15,
    "IQ2_XS": 20,
    "IQ3_XXS": 23,
    "IQ1_S": 24,
    "IQ3_S": 26,
    "IQ4_XS": 30,
    "MXFP4": 38,
}
SCALES = {  # where a block's half-precision scales are, and the deviation of what they multiply
    "Q4_0": ((0,), 4.6),
    "Q5_0": ((0,), 9.2),
    "Q8_0": ((0,), 73.9),
    "Q2_K": ((80, 82), 13.4),
    "Q3_K": ((108,), 43.4),
    "Q4_K": ((0, 2), 300.0),
    "Q6_K": ((208,), 1370.0),
    "IQ1_S": ((0,), 7.2),
    "IQ2_XS": ((0,), 56.0),
    "IQ3_XXS": ((0,), 142.0),
    "IQ3_S": ((0,), 140.0),
    "IQ4_NL": ((0,), 67.4),
    "IQ4_XS": ((0,), 1246.0),
}
OTHERWISE = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"} | dict.fromkeys(
    ("Q2_K", "Q3_K", "IQ1_S", "IQ2_XS", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
)  # for rows of no whole blocks
MXFP4_EXPONENTS = (119, 121)  # from one to before another: of weights of deviation about 0.02


def possible(kind: str, columns: int) -> str:
    """Return a type, or another one for rows that are no whole blocks of it."""
    return kind if columns % BLOCKS[kind][0] == 0 else OTHERWISE.get(kind, "F16")


def random_blocks(rng: np.random.Generator, kind: str, deviation: float, count: int) -> np.ndarray:
    """Return so many blocks, (count, bytes) of uint8: their values are finite and have about this standard deviation.

    With a deviation of 0 all values are 0; what scales multiply is random even so.
    """
    values, size, _ = BLOCKS[kind]
    if values == 1:
        numbers = rng.standard_normal(count, np.float32) * np.float32(deviation)
        return numbers.astype("<f2" if kind == "F16" else "<f4").view(np.uint8).reshape(count, size)
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(*MXFP4_EXPONENTS, count, np.uint8)
        if not deviation:
            blocks[:, 1:] = 0
        return blocks
    places, spread = SCALES[kind]
    for place in places:
        scales = (rng.uniform(0.5, 1.5, count) * deviation / spread).astype("<f2")
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks


def clear(blocks: np.ndarray, kind: str) -> None:
    """Make all values of some blocks, (..., bytes) of uint8, 0."""
    if BLOCKS[kind][0] == 1:
        blocks[...] = 0
        return
    for place in SCALES[kind][0]:
        blocks[..., place : place + 2] = 0
