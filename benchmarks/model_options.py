"""What the scripts that measure whole models ask for, and write: which model, how it is opened, reports.

A report is what one model in one format did on one device; files hold `{"reports": [...]}`.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_device import DEVICE_HELP, chosen_info, device_facts, device_text
from made_checkpoint import SHAPES, MadeCheckpoint
from out_file import out_file
from step_work import StepWork

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, KVDType, WeightScheme
from unicorn_async.engine.files import ModelFiles

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from unicorn_async.cli.bench_limits import Limits
    from unicorn_async.engine.engine import Engine

DTYPES = ("BF16", "F16")  # the first is the default
FORMATS = tuple(scheme.value for scheme in WeightScheme)
WEIGHTS_HELP = "what weights become while they are loaded"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses a model and the device, and the file of the reports."""
    parser.add_argument("model", help="a folder, a GGUF file, `demo`, or a shape that tools/make_checkpoint.py knows")
    parser.add_argument("--dtype", choices=DTYPES, help=f"of a checkpoint that is made (default {DTYPES[0]})")
    parser.add_argument("--layers", type=count, help="of a checkpoint that is made: fewer or more than the shape has")
    parser.add_argument(
        "--folder", type=Path, help="where a made checkpoint goes, or the same one is already (default: temporary)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint that was made")
    parser.add_argument("--kv-dtype", choices=[kind.value for kind in KVDType], default=KVDType.F16.value)
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--json", type=out_file, metavar="FILE")


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Add the one format that is measured."""
    parser.add_argument(
        "--weights", choices=FORMATS, default=WeightScheme.AUTO.value, help=f"{WEIGHTS_HELP} (default: what they are)"
    )


def add_formats_option(parser: argparse.ArgumentParser) -> None:
    """Add the formats that are measured, one after the other."""
    text = f"{WEIGHTS_HELP}, one report each (default: what they are)"
    parser.add_argument("--weights", nargs="+", choices=FORMATS, default=[WeightScheme.AUTO.value], help=text)


def add_repeat_option(parser: argparse.ArgumentParser, default: int = 3) -> None:
    """Add how often is measured."""
    text = f"measurements that count (default {default})"
    parser.add_argument("--repeat", type=count, default=default, metavar="N", help=text)


def add_kernels_option(parser: argparse.ArgumentParser) -> None:
    """Add whether kernels are timed."""
    parser.add_argument("--kernels", action="store_true", help="open the model again and time every dispatch")


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; ends the script with a message if there is no such model."""
    options = parser.parse_args()
    if options.model == "demo" or Path(options.model).exists():
        for name in ("dtype", "layers", "folder"):
            if getattr(options, name) is not None:
                parser.error(
                    f"--{name}: only for a shape of tools/make_checkpoint.py; {options.model} is there already"
                )
    elif options.model not in SHAPES:
        parser.error(f"{options.model}: no such folder or file, and none of demo, {', '.join(SHAPES)}")
    elif options.folder is not None and (refusal := checkpoint_of(options).refusal(options.folder)):
        parser.error(f"--folder: {refusal}")
    return options


def model_name(options: argparse.Namespace) -> str:
    """Return what a measurement says of its model."""
    if options.model == "demo" or Path(options.model).exists():
        return str(options.model)
    return checkpoint_of(options).name


def checkpoint_of(options: argparse.Namespace) -> MadeCheckpoint:
    """Return the checkpoint that is made where the model is a shape."""
    return MadeCheckpoint(options.model, options.dtype or DTYPES[0], options.layers)


@contextlib.contextmanager
def model_path(options: argparse.Namespace) -> Iterator[str]:
    """Yield what to open, after making it where it is a shape; what was made is removed unless it is to be kept.

    Raises:
        VulkanUnavailableError, ConfigError: there is no such device; nothing is made for it.
    """
    if options.model == "demo" or Path(options.model).exists():
        yield options.model
        return
    chosen_info(options.device)  # tens of GB need not be written to see that
    with checkpoint_of(options).in_folder(options.folder, keep=options.keep) as folder:
        yield str(folder)


def engine_config(options: argparse.Namespace, weights: str, *, streams: int, context: int) -> EngineConfig:
    """Return a configuration with room for so many streams of so many tokens, and no weight cache."""
    return EngineConfig(
        device=options.device,
        max_num_seqs=streams,
        max_context=context,
        weights=WeightScheme(weights),
        kv_dtype=KVDType(options.kv_dtype),
        weight_cache=False,
        max_mixed_step_s=None,  # prompts before the measurement as fast as they can be
    )


def heading(engine: Engine, options: argparse.Namespace, weights: str) -> str:
    """Say what is measured, on what."""
    return (
        f"{model_name(options)}, weights {weights}: {device_text(engine.device)}, {os.cpu_count()} cores"
        f"\nkernels: {', '.join(engine.kernels)}"
    )


def facts(
    engine: Engine, options: argparse.Namespace, weights: str, work: StepWork, limits: Limits | None = None
) -> dict[str, Any]:
    """Return what every report begins with."""
    return {
        "model": model_name(options),
        "weights": weights,
        **device_facts(engine.device),
        "kernels": list(engine.kernels),
        "limits": limits and asdict(limits),
        "work": asdict(work),
    }


def read_work(path: str, config: EngineConfig) -> StepWork:
    """Count what steps of a model must do."""
    return StepWork.of(ModelFiles.read(path, config.weights), config)


def write_reports(options: argparse.Namespace, reports: Sequence[dict[str, Any]]) -> None:
    """Write what there is so far, if a file is asked for."""
    if options.json:
        options.json.write_text(json.dumps({"reports": reports}, indent=1, default=asdict) + "\n")
