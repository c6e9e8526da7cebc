"""`unicorn inspect MODEL`: what a model consists of, and what goes where. It reads no weights and needs no GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.location import DEMO
from unicorn_async.cli.adapters import adapter_lines, adapters_json
from unicorn_async.cli.amounts import size
from unicorn_async.cli.cache_outlook import CacheOutlook, cache_outlook
from unicorn_async.cli.model_summary import config_json, config_lines
from unicorn_async.cli.options import MODEL_HELP, add_planning_options, engine_config
from unicorn_async.cli.placement import DevicePlacement, has_room, placements
from unicorn_async.cli.tensor_rows import TensorRow, tensor_rows
from unicorn_async.cli.tokenizer_report import TokenizerReport, tokenizer_report
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.user_folders import weight_cache_folder
from unicorn_async.errors import VulkanUnavailableError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unicorn_async.cache.lookup import CacheStatus

_SHOWN_NAMES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--all", action="store_true", help="list every layer; otherwise layers that are alike once")
    parser.add_argument("--json", action="store_true", help="print one JSON object with everything")
    add_planning_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report; returns 1 where a load would refuse the model."""
    config = replace(engine_config(options), allow_software=options.model == DEMO)
    model = ModelFiles.read(options.model, config.weights, config.loras)
    rows, places, tokenizer = tensor_rows(model), [], tokenizer_report(model)
    folder = weight_cache_folder() if config.weight_cache else None
    found = model.look_up(folder)
    cache, outlook = found.status, cache_outlook(folder, model.plan, found.status, config.cache_bytes)
    try:
        places = placements(model, config, found)
    except VulkanUnavailableError as exc:
        print(f"unicorn inspect: {exc}", file=sys.stderr)
    if options.json:
        print(json.dumps(_as_json(model, rows, places, tokenizer, cache, outlook), indent=2))
    else:
        print("\n".join(_report(model, rows, places, tokenizer, cache, outlook, every_layer=options.all)))
    return 1 if tokenizer.refused or not has_room(places) else 0


def _report(
    model: ModelFiles,
    rows: Sequence[TensorRow],
    places: Sequence[DevicePlacement],
    tokenizer: TokenizerReport,
    cache: CacheStatus,
    outlook: CacheOutlook | None,
    *,
    every_layer: bool,
) -> list[str]:
    plan, checkpoint = model.plan, model.checkpoint
    lines = [
        f"{model.name}: {model.config.architecture} in {checkpoint.path}",
        "",
        *config_lines(model.config),
        f"tokenizer      {tokenizer.text}",
        "",
    ]
    lines += _tensor_table(rows, model.config.num_layers, every_layer=every_layer)
    if model.lora.adapters:
        lines += ["", *adapter_lines(model.lora.adapters)]
    others = "vision and audio"
    if checkpoint.gguf_metadata is not None:
        others = "constants of rotary embeddings, further predictors, vision"
    lines += [
        "",
        f"to read        {size(plan.bytes_to_read)} from {_files(len(checkpoint.files))}, in {len(plan.chunks)} chunks",
        f"on the device  {size(plan.dest_bytes)} in {len(plan.destinations)} tensors",
        f"skipped        {_names(checkpoint.skipped)} ({others})",
        f"ignored        {_names(plan.ignored)} (not known to the architecture)",
        f"cache          {_cache_text(cache, outlook)}",
        "",
    ]
    return lines + [text for place in places for text in place.lines()]


def _tensor_table(rows: Sequence[TensorRow], num_layers: int, *, every_layer: bool) -> list[str]:
    width = max(len(row.name) for row in rows)
    lines = [f"{'tensor':<{width}}{'shape':>16}{'on disk':>9}{'size':>10}  destination"]
    by_layer = [(layer, tuple(group)) for layer, group in groupby(rows, key=lambda row: row.layer)]
    position = 0
    while position < len(by_layer):
        layer, group = by_layer[position]
        alike = 1
        if not every_layer and 0 <= layer < num_layers:
            pattern = [row.pattern for row in group]
            while position + alike < len(by_layer) and [r.pattern for r in by_layer[position + alike][1]] == pattern:
                alike += 1
        if alike > 1:
            lines.append(f"layers {layer} to {layer + alike - 1} are alike; layer {layer}:")
        lines += [row.line(width) for row in group]
        position += alike
    return lines


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _cache_text(cache: CacheStatus, outlook: CacheOutlook | None) -> str:
    nbytes = f"{size(cache.nbytes)}, " if cache.nbytes else ""
    return nbytes + cache.text() + (f"; {outlook.text()}" if outlook else "")


def _names(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{len(names)}: {', '.join(names[:_SHOWN_NAMES])}{more}"


def _as_json(
    model: ModelFiles,
    rows: Sequence[TensorRow],
    places: Sequence[DevicePlacement],
    tokenizer: TokenizerReport,
    cache: CacheStatus,
    outlook: CacheOutlook | None,
) -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.checkpoint.path),
        "config": config_json(model.config),
        "tensors": [row.to_json() for row in rows],
        "tokenizer": tokenizer.to_json(),
        "adapters": adapters_json(model.lora.adapters),
        "skipped": list(model.checkpoint.skipped),
        "ignored": list(model.plan.ignored),
        "bytes_to_read": model.plan.bytes_to_read,
        "device_bytes": model.plan.dest_bytes,
        "cache": cache.to_json() | (outlook.to_json() if outlook else {}),
        "devices": [place.to_json() for place in places],
    }
