"""Loads by other libraries: each brings the tensors, and one thread copies them into mapped device memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from bare_reads import BLOCK_BYTES, Clock, device_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bare_reads import Job


def safetensors_copy(job: Job) -> Clock:
    """The safetensors library, tensor by tensor."""
    import torch
    from safetensors import safe_open

    def tensors() -> Iterator[Any]:
        for path in job.files:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dict
                    yield opened.get_tensor(name)

    return copy_tensors(job, tensors, torch)


def runai_streamer(job: Job) -> Clock:
    """Run:ai model streamer, each tensor as it arrives."""
    import torch
    from runai_model_streamer import SafetensorsStreamer

    os.environ.setdefault("RUNAI_STREAMER_CONCURRENCY", str(job.threads))

    def tensors() -> Iterator[Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(path) for path in job.files])
            for _, tensor in streamer.get_tensors():
                yield tensor

    return copy_tensors(job, tensors, torch)


def fastsafetensors(job: Job) -> Clock:
    """fastsafetensors without GPUDirect, after it has read the files."""
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def tensors() -> Iterator[Any]:
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True, max_threads=job.threads)
        loader.add_filenames({0: [str(path) for path in job.files]})
        buffer = loader.copy_files_to_device()
        for name in loader.get_keys():
            yield buffer.get_tensor(name)
        buffer.close()
        loader.close()

    return copy_tensors(job, tensors, torch)


PEERS: dict[str, Callable[[Job], Clock]] = {
    "safetensors": safetensors_copy,
    "runai-streamer": runai_streamer,
    "fastsafetensors": fastsafetensors,
}


def copy_tensors(job: Job, tensors: Callable[[], Iterator[Any]], torch: Any) -> Clock:
    """Copy every tensor into mapped device memory, one after the other as they come."""
    clock, position = Clock(), 0
    with device_blocks(job.device, job.nbytes) as blocks:
        views = [np.frombuffer(block.mapped, np.uint8) for block in blocks if block.mapped is not None]
        if len(views) < len(blocks):
            raise SystemExit("the device's memory is not mapped: this method can't be compared here")
        with clock:
            for tensor in tensors():
                source = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
                for start in range(0, len(source), BLOCK_BYTES):
                    part, place = source[start : start + BLOCK_BYTES], position % BLOCK_BYTES
                    target = views[position // BLOCK_BYTES % len(views)][place : place + len(part)]
                    np.copyto(target, part[: len(target)])
                    if len(target) < len(part):
                        rest = views[(position // BLOCK_BYTES + 1) % len(views)]
                        np.copyto(rest[: len(part) - len(target)], part[len(target) :])
                    position += len(part)
        del views
    return clock
