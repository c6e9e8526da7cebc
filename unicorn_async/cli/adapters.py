"""LoRA adapters on a command line: the option, and what `inspect` says of them."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from typing import TYPE_CHECKING

from unicorn_async.engine.types import AdapterInfo
from unicorn_async.errors import ConfigError
from unicorn_async.lora_spec import LoraSpec

if TYPE_CHECKING:
    from unicorn_async.lora.adapter import LoraAdapter

_LAYER_NUMBER = re.compile(r"\blayers\.\d+\.")


def add_lora_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --lora, which may be given several times."""
    parser.add_argument(
        "--lora",
        type=lora_spec,
        action="append",
        default=[],
        metavar="DIR[=WEIGHT]",
        help="blend a LoRA adapter (PEFT's layout) into the weights while they are loaded; may be given several times",
    )


def lora_spec(text: str) -> LoraSpec:
    """Parse an adapter's directory, or its name in the Hugging Face cache, with a weight if there is one."""
    try:
        return LoraSpec.parse(text)
    except ConfigError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def adapter_lines(adapters: tuple[LoraAdapter, ...]) -> list[str]:
    """Return which tensors each adapter changes, those of several layers in one line, with rank and scale."""
    lines = []
    for adapter in adapters:
        lines.append(f"adapter {AdapterInfo.of(adapter).text()}, in {adapter.path}")
        kinds = Counter(
            (_LAYER_NUMBER.sub("layers.*.", pair.target), pair.rank, pair.scale) for pair in adapter.pairs.values()
        )
        width = max(len(name) for name, _, _ in kinds)
        for (name, rank, scale), count in sorted(kinds.items()):
            lines.append(f"   {name:<{width}}{count:>6} of rank {rank}, scale {scale:g}")
        if adapter.skipped:
            lines.append(f"   skipped: {len(adapter.skipped)} tensors for vision and audio")
    return lines


def adapters_json(adapters: tuple[LoraAdapter, ...]) -> list[dict[str, object]]:
    """Return the same as JSON values, tensor by tensor."""
    return [
        {
            "name": adapter.name,
            "path": str(adapter.path),
            "weight": adapter.weight,
            "digest": adapter.digest,
            "tensors": [
                {"name": pair.target, "rank": pair.rank, "scale": pair.scale} for pair in adapter.pairs.values()
            ],
            "skipped": list(adapter.skipped),
        }
        for adapter in adapters
    ]
