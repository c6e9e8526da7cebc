"""Everything from the machine's NPU to an attention that has answered the known questions."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.npu.attention import AttentionService
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.manifest import find_build
from unicorn_async.npu.self_check import self_check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unicorn_async.npu.attention import NpuOptions
    from unicorn_async.npu.host import NpuHost
    from unicorn_async.npu.work import AttentionHeads


@asynccontextmanager
async def open_attention(
    heads: AttentionHeads,
    *,
    builds: Path,
    soft_cap: float = 0.0,
    options: NpuOptions | None = None,
    host: NpuHost | None = None,
) -> AsyncIterator[AttentionService]:
    """Open the NPU, load its kernels for these heads, and check them; on leaving, wait for runs and close everything.

    `heads.layout.chip` has to be the machine's (`npu_chip`). `builds` is the folder of builds.

    Raises:
        NpuUnavailableError: no NPU, no driver, no permission, no XRT. NpuBuildError: no kernels for this chip and
        head_dim. NpuBusyError: no context is free. NpuSelfCheckError: the kernels answer wrongly.
    """
    with ExitStack() as made:

        def load() -> AttentionService:
            device = made.enter_context(Device.open(host))
            context = Context(device, find_build(builds, device.chip, heads.layout.head_dim))
            made.callback(context.close)
            return AttentionService(context, heads, soft_cap=soft_cap, options=options)

        attention = await run_to_end(load)
        try:
            await self_check(attention)
            yield attention
        finally:
            await attention.close()
