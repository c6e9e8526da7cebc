"""The kernels that first requests need, for compiling them while the weights are loaded."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from unicorn_async.loader.conversion import conversion_kernels
from unicorn_async.ops.checksum import checksum_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.lora.plan import LoraPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.weights.plan import LoadPlan


class NeededKernels:
    """The pipelines of a model's load and of its steps, found by a dry run when they are first asked for.

    Unless the device `attends` itself, `seam` is what leads there. A load `from_cache` converts nothing.
    """

    def __init__(
        self,
        info: DeviceInfo,
        spec: ModelSpec,
        shape: AttentionShape,
        plan: LoadPlan,
        lora: LoraPlan,
        options: EngineConfig,
        *,
        attends: bool = True,
        seam: Iterable[KernelRequest] = (),
        from_cache: bool,
    ) -> None:
        self._load = (checksum_kernel(info),) if from_cache else conversion_kernels(plan, lora)
        self._seam = tuple(seam)
        self._model = info, spec, shape, plan
        self._attends = attends
        self._options = options
        self._lock = Lock()
        self._requests: tuple[KernelRequest, ...] | None = None

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """What to compile, in the order of need; any thread may ask."""
        with self._lock:
            if self._requests is None:
                from unicorn_async.step.dry_run import DryRun, step_kernels  # once the first reads are under way

                load = [replace(request, urgent=True) for request in self._load]
                run = DryRun(*self._model, attends=self._attends)
                self._requests = step_kernels(run, self._options, load=load, seam=self._seam)
            return self._requests
