"""`unicorn list`: the models in the Hugging Face cache of this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.hub import hub_cache
from unicorn_async.cli.amounts import size
from unicorn_async.hub.cached import cached_models
from unicorn_async.public_text import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unicorn_async.hub.cached import CachedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print a JSON array")


def run(options: argparse.Namespace) -> int:
    """Print them."""
    models = cached_models()
    if options.json:
        print(json.dumps([asdict(model) for model in models], indent=2))
        return 0
    print("\n".join(_table(models)) if models else f"no models in {hub_cache()}")
    return 0


def _table(models: Sequence[CachedModel]) -> list[str]:
    rows = [("model", "kind", "size"), *((printable(model.name), _kind(model), size(model.nbytes)) for model in models)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{name.ljust(widths[0])}  {kind.ljust(widths[1])}  {amount}" for name, kind, amount in rows]


def _kind(model: CachedModel) -> str:
    if model.is_whole:
        return printable(model.kind)
    return f"{model.kind}, incomplete" if model.kind else "no whole model"
