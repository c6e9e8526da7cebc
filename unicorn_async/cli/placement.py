"""Where a model would lie on the devices of this machine: planned as a load plans it, nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.cli.memory_lines import heap_name
from unicorn_async.engine.attending import settle_attention
from unicorn_async.engine.placement import memory_json
from unicorn_async.errors import ConfigError, OutOfMemoryError, VulkanUnavailableError
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.choice import FarDevice
from unicorn_async.memory.plan import plan_memory
from unicorn_async.weights.placement import MemoryGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.cache.lookup import CacheLookup
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.hybrid.way_choice import AttentionChoice
    from unicorn_async.memory.plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    """One model on one device: the `plan`, or why there is none. `is_chosen` says that a load would take the device."""

    info: DeviceInfo
    plan: MemoryPlan | None
    problem: str | None
    reading: str  # how the files would be read now, and why
    is_chosen: bool
    choice: AttentionChoice | None = None  # what `--attention auto` is there, and why

    def lines(self) -> list[str]:
        """Return what people want to know; the whole table for the device that a load would take."""
        name = f"{self.info.index}: {self.info.name}{' (SOFTWARE)' if self.info.is_software else ''}"
        if self.plan is None:
            return [f"{name}: can't be used: {self.problem}", ""]
        lines = [f"{name}: fits, with a context of up to {self.plan.kv.max_context} tokens"]
        if self.is_chosen:
            lines += ["", *_table(self.info, self.plan), "", f"how it reads: {self.reading}"]
        if self.choice is not None:
            lines += ["", *self.choice.lines()]
        return [*lines, ""]

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values; sizes in bytes."""
        return {
            "index": self.info.index,
            "device": self.info.name,
            "software": self.info.is_software,
            "chosen": self.is_chosen,
            "fits": self.plan is not None,
            "problem": self.problem,
            **memory_json(self.plan),
            "attention_choice": None if self.choice is None else self.choice.to_json(),
            "reading": self.reading,
        }


def placements(model: ModelFiles, options: EngineConfig, cached: CacheLookup) -> list[DevicePlacement]:
    """Return where the model would lie on each device, or on the one that is asked for; it may be `cached`.

    Raises:
        VulkanUnavailableError: there is no Vulkan here.
        ConfigError: the device that is asked for is not there, or an option can't work.
    """
    with Instance.create() as instance:
        devices = instance.devices()
        try:
            candidates = device_candidates(devices, options.device, allow_software=options.allow_software)
        except VulkanUnavailableError:  # a load would refuse to take the software device unasked
            candidates = ()
        options, choice = settle_attention(model, options, candidates or devices)
        far = FarDevice(model.config, options, devices)
        candidates = far.near(candidates)
        infos = _all_of(devices, candidates, options)
        found = [_placement(model, options, info, cached, far) for info in infos]
    chosen = next((p for p in found if p.plan is not None and p.info in candidates), None)
    if chosen is None and len(found) == 1:
        chosen = found[0]  # what a load would do, were it told to take this one
    return [replace(p, is_chosen=p is chosen, choice=choice if p is chosen else None) for p in found]


def has_room(places: Sequence[DevicePlacement]) -> bool:
    """Whether a load would find room: on a GPU where there is one. Where no device is known of it may."""
    if any(place.is_chosen and place.plan is not None for place in places):
        return True
    usable = [place for place in places if not place.info.is_software] or places
    return not usable or any(place.plan is not None for place in usable)


def _all_of(devices: Sequence[DeviceInfo], candidates: Sequence[DeviceInfo], options: EngineConfig) -> list[DeviceInfo]:
    others = [] if options.device is not None else [info for info in devices if info not in candidates]
    return [*candidates, *others]


def _placement(
    model: ModelFiles, options: EngineConfig, info: DeviceInfo, cached: CacheLookup, far: FarDevice
) -> DevicePlacement:
    plan, problem = None, None
    try:
        plan = plan_memory(
            model.config,
            options,
            model.plan,
            info,
            transient_bytes=model.transient_bytes,
            staging=model.staging,
            far=far.plan,
        )
    except OutOfMemoryError as exc:
        problem = str(exc).removeprefix(f"{info.name}: ")
    except ConfigError as exc:
        if options.device is not None:
            raise
        problem = str(exc)
    reading = model.read_strategy(info, options.num_reader_threads, memory=plan, found=cached).text()
    if cached.file is not None:
        reading = f"the entry in the cache, {reading}"
    return DevicePlacement(info, plan, problem, reading, is_chosen=False)


def _table(info: DeviceInfo, plan: MemoryPlan) -> list[str]:
    placement = plan.placement
    is_tied = all(row.group is not MemoryGroup.EMBEDDINGS for row in placement.rows())
    lines = [f"{'what':<26}{'size':>10}  {'where':<14}transform"]
    for row in placement.rows():
        name = row.group.value if row.layers is None else f"{row.group.value}, {_layers(*row.layers)}"
        if row.group is MemoryGroup.HEAD and is_tied:
            name = "embeddings, output head"
        where = heap_name(info, row.heap)
        lines.append(f"{name:<26}{size(row.nbytes):>10}  {where:<14}{', '.join(row.transforms)}".rstrip())
    for heap in HeapKind:
        if placement.room.of(heap):
            used, room = placement.nbytes(heap), placement.room.of(heap)
            lines.append(f"{'in all':<26}{size(used):>10}  {heap_name(info, heap)}, of which {size(room)} may be used")
    if placement.room.is_shared and placement.room.total < placement.room.vram + placement.room.gtt:
        lines.append(f"{'':<26}{size(placement.room.total):>10}  may be used of both, which are one memory")
    if plan.staged_bytes:
        where = heap_name(info, HeapKind.GTT if placement.room.gtt else HeapKind.VRAM)
        lines.append(f"{'beside it, staging':<26}{size(plan.staged_bytes):>10}  {where}, at most, while it loads")
    if plan.step_bytes:
        where = heap_name(info, HeapKind.VRAM)
        lines.append(f"{'beside it, steps':<26}{size(plan.step_bytes):>10}  {where}, at most, while it loads")
    if plan.kv.first_bytes < plan.kv.nbytes:
        lines.append(f"{'of the KV cache at first':<26}{size(plan.kv.first_bytes):>10}  the rest comes beside serving")
    if plan.far is not None:
        beside = f"; with the exchange {size(plan.far.near_bytes)} of the model's memory" if plan.far.near_bytes else ""
        lines.append(f"{'beside it, KV cache':<26}{size(plan.kv.nbytes):>10}  {plan.far.device}{beside}")
    return lines


def _layers(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first} to {last}"
