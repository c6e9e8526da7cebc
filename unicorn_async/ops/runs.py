"""Where the tokens of a step stand among those of their sequence: what kernels with a state of fixed size go by."""

from __future__ import annotations

import numpy as np

# `Run` in shaders/include/run.glsl.
TOKEN_RUN = np.dtype([("state_index", "<u4"), ("offset", "<u4"), ("source", "<u4"), ("kept", "<u4")])
LAST_OF_RUN = 0x80000000  # added to the offset of the last token that its sequence has in the step
KEPT_TOKENS = 32  # of a chunk; a state that is kept before a run's end is that behind some of a run's chunks
SHORTEST_CHUNKED = 16  # tokens of a run that goes in chunks; both as in shaders/include/long_run.glsl
