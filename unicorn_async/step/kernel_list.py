"""The kernels that first requests need, for compiling them while the weights are loaded."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING

from unicorn_async.gpu.listing import unique_requests
from unicorn_async.loader.conversion import conversion_kernels
from unicorn_async.memory.plan import max_logit_rows
from unicorn_async.ops.checksum import checksum_kernel
from unicorn_async.ops.sample_rows import SamplingPath
from unicorn_async.step.buckets import bucket_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.listing import ListedDispatch
    from unicorn_async.lora.plan import LoraPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.step.dry_run import DryRun
    from unicorn_async.weights.plan import LoadPlan

_FIRST_STEPS = (32, 1)  # tokens: a short prompt, then decoding


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
                load = (replace(request, urgent=True) for request in self._load)
                from unicorn_async.step.dry_run import DryRun  # once the first reads are under way

                run = DryRun(*self._model, attends=self._attends)
                steps = step_kernels(run, self._seam, self._options)
                self._requests = unique_requests([*load, *steps])
            return self._requests


def step_kernels(run: DryRun, seam: Iterable[KernelRequest], options: EngineConfig) -> tuple[KernelRequest, ...]:
    """Return what steps need, in the order of need: a short prompt and decoding, then more of both.

    Where another device attends, `seam` names what leads there.
    """
    others = [size for size in bucket_sizes(options.max_num_batched_tokens) if size not in _FIRST_STEPS]
    first_rows, *other_rows = bucket_sizes(max_logit_rows(options))
    first = chain(
        run.embedding(),
        *(run.unique_layers(size) for size in _FIRST_STEPS),
        run.head(first_rows),
    )
    then = chain(
        run.sampling(SamplingPath.GREEDY),
        run.sampling(SamplingPath.FULL, counts=True),
        *(run.unique_layers(size) for size in others),
        *(run.head(rows) for rows in other_rows),
    )
    return unique_requests([*_requests(first), *seam, *_requests(then)])


def _requests(dispatches: Iterable[ListedDispatch]) -> Iterator[KernelRequest]:
    return (dispatch.request for dispatch in dispatches)
