"""What a command says about the model and the device before it begins."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.cli.memory_lines import planned_line
from unicorn_async.gpu.choice import why_no_gpu
from unicorn_async.gpu.host import HostGraphics

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device_info import DeviceInfo


def banner(engine: Engine) -> list[str]:
    """Return the lines: version, device and why it, model, context and KV cache."""
    config, options = engine.model_spec, engine.config
    return [
        f"unicorn_async {version('unicorn-async')}",
        *device_lines(engine.device, wanted=options.device),
        *tuning_lines(engine.device),
        f"model    {engine.model_name}: {config.architecture}, {config.num_layers} layers,"
        f" {size(engine.progress.bytes_total)} of weights{', from the cache' if engine.progress.from_cache else ''}",
        *([f"attends  {engine.attention.text()}"] if options.attends_elsewhere else []),
        *(engine.attention.choice.lines() if engine.attention.choice is not None else []),
        *(f"adapter  {adapter.text()}" for adapter in engine.adapters),
        *([f"draft    {engine.draft.text()}"] if engine.draft is not None else []),
        *(["draft    by a layer of the model's own, a token at a time"] if engine.predicts else []),
        *([f"draft    not by the model's own layer: {engine.predictor_left_out}"] if engine.predictor_left_out else []),
        f"context  {engine.max_context} tokens; KV cache {size(engine.kv_cache_bytes)} in {engine.attention.kv_dtype},"
        f" up to {options.max_seqs} sequences in a step",
        planned_line(engine.device, engine.memory),
    ]


def banner_without_model() -> list[str]:
    """Return the lines of a server that begins without a model."""
    return [
        f"unicorn_async {version('unicorn-async')}",
        "model    none yet: GET /v1/models lists what may be loaded, POST /v1/models/load loads it",
    ]


def tuning_lines(info: DeviceInfo) -> list[str]:
    """Return how many choices of kernels were measured, if any."""
    products, forms = len(info.tuned), len(info.forms)
    chosen = [
        *([f"{products} product{'s' * (products > 1)} by kernels"] if products else []),
        *([f"{forms} input{'s' * (forms > 1)} in forms"] if forms else []),
    ]
    return [f"tuning   {', '.join(chosen)} that were measured to be faster here"] if chosen else []


def device_lines(info: DeviceInfo, *, wanted: str | None, host: HostGraphics | None = None) -> list[str]:
    """Return the device, its driver, and why it was chosen."""
    line = f"device   {info.index}: {info.name}, {info.driver_name} {info.driver_info}"
    if not info.is_software:
        reason = "asked for" if wanted is not None else "the fastest that fits"
        return [f"{line} ({info.type.value} GPU, {reason})"]
    lines = [line, "         SOFTWARE: the CPU runs the shaders of this device; it is slow"]
    if wanted is None:
        lines.append(f"         taken because no GPU was found{why_no_gpu(host or HostGraphics())}")
    return lines
