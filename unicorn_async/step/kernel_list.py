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
    """The pipelines of a model's steps, found by a dry run when they are first asked for, and those of its load.

    The dry run keeps Python busy for some milliseconds, with imports for some more: who begins a load makes it behind
    the first reads, and before it is asked for in an event loop.
    """

    def __init__(
        self,
        info: DeviceInfo,
        spec: ModelSpec,
        shape: AttentionShape,
        plan: LoadPlan,
        options: EngineConfig,
        *,
        attends: bool = True,
        seam: Iterable[KernelRequest] = (),
    ) -> None:
        """Name what decides them; unless the device `attends` itself, `seam` is what leads there."""
        self._model = info, spec, shape, plan
        self._attends = attends
        self._seam = tuple(seam)
        self._options = options
        self._lock = Lock()
        self._steps: tuple[KernelRequest, ...] | None = None
        self._load: tuple[KernelRequest, ...] = ()

    def add_load(self, plan: LoadPlan, lora: LoraPlan, *, from_cache: bool) -> None:
        """Add what a load needs; one `from_cache` converts nothing."""
        load = (checksum_kernel(self._model[0]),) if from_cache else conversion_kernels(plan, lora)
        self._load = tuple(replace(request, urgent=True) for request in load)

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """What to compile, in the order of need; any thread may ask."""
        return (*self._load, *self.list_steps())

    def list_steps(self) -> tuple[KernelRequest, ...]:
        """Return what steps need; any thread may ask, and those that ask meanwhile wait."""
        with self._lock:
            if self._steps is None:
                from unicorn_async.step.dry_run import DryRun, step_kernels  # in a thread, beside what opens the model

                run = DryRun(*self._model, attends=self._attends)
                self._steps = step_kernels(run, self._options, seam=self._seam)
            return self._steps
