"""A kernel as the manifest describes it, without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.binding import PipelineHandle, PipelineLayoutHandle
from unicorn_async.gpu.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.gpu.manifest import ConstantValue, ManifestEntry


def entry_kernel(entry: ManifestEntry, constants: Mapping[str, ConstantValue] | None = None) -> Kernel:
    """Return a shader's kernel."""
    pipeline, layout = PipelineHandle(None), PipelineLayoutHandle(None)
    return Kernel(entry.name, "", (1, 1, 1), 32, pipeline, layout, entry.push, entry.push_bytes, constants or {})
