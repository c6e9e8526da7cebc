"""What the host tells the kernels of embeddings of each part: rows of one sequence in a step."""

from __future__ import annotations

import numpy as np

# `Pool` in shaders/include/pool.glsl, and its flags.
POOL = np.dtype(
    [
        ("state_index", "<u4"),
        ("row", "<u4"),
        ("num_rows", "<u4"),
        ("flags", "<u4"),
        ("dimensions", "<u4"),
        ("scale", "<f4"),
    ]
)
BEGINS, ENDS, NORMALISES = 1, 2, 4
