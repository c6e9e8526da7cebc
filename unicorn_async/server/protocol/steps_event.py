"""`unicorn.steps`: what the engine's steps do, for a websocket client that watches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.engine.step_feed import BlockMap, StepRecord
    from unicorn_async.engine.types import EngineAPI

_MOST_RUNS = 4096  # of blocks, in one event


def steps_event(
    engine: EngineAPI,
    records: Sequence[StepRecord],
    dropped: int,
    *,
    now_s: float,
    own: Mapping[str, str | None],
    with_heaps: bool,
    cache: CacheText,
) -> str:
    """Return the event; `own` are the client's responses, with the streams that they are sent in.

    Times are milliseconds before `now_s`, which is of `time.perf_counter`. Of others' requests there is a number alone.
    """
    stats = engine.stats()
    maps = engine.steps.block_maps()
    names = {part.sequence: part.request_id for record in records for part in record.parts}
    names.update((owner.sequence, owner.request_id) for found in maps for owner in found.owners)
    requests = {str(sequence): own[name] for sequence, name in names.items() if name in own}
    event: dict[str, object] = {
        "type": "unicorn.steps",
        "model": engine.model_name,
        "dropped": dropped,
        "steps": [_step(record, now_s) for record in records],
        "own": requests,
        "running": stats.running,
        "waiting": stats.waiting,
        "preemptions": stats.preemptions,
    }
    if with_heaps:
        event["heaps"] = [
            {"heap": heap.heap.value, "planned": heap.planned, "allocated": heap.allocated}
            for heap in engine.memory.heaps
        ]
    return f'{encode_object(event)[:-1]},"cache":{cache.of(maps)}}}'


class CacheText:
    """What is told of the KV cache, as JSON: made once for all that watch, of each state that they see."""

    def __init__(self) -> None:
        self._maps: Sequence[BlockMap] | None = None
        self._text = ""

    def of(self, maps: Sequence[BlockMap]) -> str:
        """Return the JSON of a state."""
        if maps is not self._maps:
            self._maps, self._text = maps, encode_object(_cache(maps))
        return self._text


def _step(record: StepRecord, now_s: float) -> dict[str, object]:
    def before(time_s: float) -> float:
        return round(1e3 * (now_s - time_s), 3)

    def spans(times: Sequence[tuple[float, float]]) -> list[list[float]]:
        return [[before(start_s), round(1e3 * (stop_s - start_s), 3)] for start_s, stop_s in times]

    step: dict[str, object] = {
        "number": record.number,
        "begun": before(record.begun_s),
        "ended": before(record.ended_s),
        "host_ms": round(1e3 * record.host_s, 3),
        "decodes": [part.sequence for part in record.parts if part.is_decode],
        "prompts": [[part.sequence, part.num_tokens] for part in record.parts if not part.is_decode],
    }
    if record.near or record.far:
        step["model_device"], step["attention_device"] = spans(record.near), spans(record.far)
    elif record.device_start_s is not None:
        step["device"] = [before(record.device_start_s), round(1e3 * record.device_s, 3)]
    return step


def _cache(maps: Sequence[BlockMap]) -> list[dict[str, object]]:
    left = _MOST_RUNS
    groups: list[dict[str, object]] = []
    for found in maps:
        owners: dict[str, list[int]] = {}
        for owner in found.owners:
            runs = owner.runs[:left]
            left -= len(runs)
            if runs:
                owners[str(owner.sequence)] = [number for run in runs for number in run]
        counts = {"blocks": found.num_blocks, "planned": found.num_planned, "used": found.num_used}
        groups.append({"window": found.window, **counts, "owners": owners})
    return groups
