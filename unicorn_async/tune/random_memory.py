"""Device memory full of random numbers, for measuring: a constant pattern would draw less power and run faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.memory import MemoryKind

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from unicorn_async.gpu.command import CommandPool
    from unicorn_async.gpu.memory import Buffer

_BLOCK_BYTES = 16 << 20


def random_memory(pool: CommandPool, nbytes: int, *, name: str, dtype: DTypeLike = np.float16) -> Buffer:
    """Allocate memory of small random numbers, the same in each block; it blocks until they are there.

    Raises:
        OutOfMemoryError: there is no room.
    """
    device = pool.device
    buffer = device.memory.allocate(nbytes, MemoryKind.DEVICE, name=name)
    block = None
    try:
        block = device.memory.allocate(min(nbytes, _BLOCK_BYTES), MemoryKind.STAGING, name="random")
        assert block.mapped is not None
        values = np.frombuffer(block.mapped, dtype)
        values[:] = np.random.default_rng(0).standard_normal(len(values), np.float32) * 0.05
        del values
        recorder = pool.recorder()
        for offset in range(0, nbytes, block.nbytes):
            recorder.copy(block, 0, buffer, offset, min(block.nbytes, nbytes - offset))
        device.compute.timeline.wait(device.compute.submit([recorder.end()]))
    except BaseException:
        buffer.close()
        raise
    finally:
        if block is not None:
            block.close()
    return buffer
