"""The models of the scripts that measure whole ones: which, made if need be; how it is opened; reports.

Checkpoints are made by tools/make_checkpoint.py; what was made is removed again, and nothing else. A report is what one
model in one format did on one device; files hold `{"reports": [...]}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_device import DEVICE_HELP, chosen_info, device_facts, device_text
from command_line import out_file
from step_work import StepWork

from unicorn_async.checkpoint.checkpoint import CONFIG_FILE, INDEX_FILE, Checkpoint
from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, KVDType, SpeculationMode, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnicornError

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from checkpoint_tensors import config, tensors
from model_shapes import SHAPES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from unicorn_async.cli.bench_limits import Limits
    from unicorn_async.engine.engine import Engine

MAKE = Path(__file__).parent.parent / "tools" / "make_checkpoint.py"
WRITTEN = (CONFIG_FILE, INDEX_FILE, "model-*-of-*.safetensors", "tokenizer.json", "tokenizer_config.json")  # by it
DTYPES = ("BF16", "F16")  # the first is the default
FORMATS = tuple(scheme.value for scheme in WeightScheme)


@dataclass(frozen=True, slots=True)
class MadeCheckpoint:
    """A checkpoint of random weights: a shape of tools/make_checkpoint.py, `layers` of it (None: all)."""

    shape: str
    dtype: str
    layers: int | None = None

    @property
    def name(self) -> str:
        """What a measurement of it is called."""
        every = SHAPES[self.shape].layers
        part = "" if self.layers in (None, every) else f", {self.layers} layers of {every}"
        return f"{self.shape} in {self.dtype}{part}"

    def refusal(self, folder: Path) -> str:
        """Say why a folder can't be where the checkpoint lies, or is written; "" if it can be."""
        if not folder.exists():
            return ""
        if not folder.is_dir():
            return f"{folder} is no directory"
        if (folder / CONFIG_FILE).exists():
            if difference := self.difference(folder):
                return f"{folder} is not {self.name}: {difference}; to measure what it is, name it as the model"
            return ""
        if any(folder.iterdir()):
            return f"{folder} is neither empty nor a checkpoint: nothing is written there"
        return ""

    def difference(self, folder: Path) -> str:
        """Say in what the checkpoint of a folder is not this one; "" if it is. No tensor's bytes are read."""
        try:
            found = Checkpoint.read(folder)
        except UnicornError as exc:
            return str(exc)
        sizes = SHAPES[self.shape]
        shape = replace(sizes, layers=self.layers or sizes.layers)
        expected = config(shape)
        for key in sorted(expected.keys() | found.config.keys()):
            if expected.get(key) != found.config.get(key):
                return f"{key}: expected {expected.get(key)}, got {found.config.get(key)}"
        wanted = {name: (self.dtype, dims) for name, dims in tensors(shape) if name not in found.skipped}
        there = {source.name: (source.dtype, source.shape) for source in found.tensors.values()}
        for name in sorted(wanted.keys() | there.keys()):
            if wanted.get(name) != there.get(name):
                return f"tensor {name}: expected {wanted.get(name)}, got {there.get(name)}"
        return ""

    @contextlib.contextmanager
    def in_folder(self, folder: Path | None, *, keep: bool) -> Iterator[Path]:
        """Yield the folder (None: a temporary one) with the checkpoint, which is made unless it is there.

        At the end the files that were made are removed unless they are to be kept, and the folder if it was made; of
        what else has come to be in it nothing is.
        """
        if folder is not None and (folder / CONFIG_FILE).exists():
            yield folder
            return
        is_new = folder is None or not folder.exists()
        folder = Path(tempfile.mkdtemp(prefix="unicorn-bench-")) if folder is None else folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise SystemExit(f"{folder}: {exc.strerror}") from exc
        before, made = set(folder.iterdir()), set[Path]()
        try:
            try:
                self.make(folder)
            finally:
                made = {file for pattern in WRITTEN for file in folder.glob(pattern)} - before
            yield folder
        finally:
            if keep:
                print(f"the checkpoint stays in {folder}", flush=True)
            else:
                for file in made:
                    file.unlink(missing_ok=True)
                if is_new:
                    with contextlib.suppress(OSError):  # something of somebody else's is in it
                        folder.rmdir()

    def make(self, folder: Path) -> None:
        """Write it; ends the script if that fails."""
        if status := subprocess.run(self.command(folder), check=False).returncode:
            raise SystemExit(f"{folder}: the checkpoint was not made, make_checkpoint.py ended with status {status}")

    def command(self, folder: Path) -> list[str]:
        """Return what writes it."""
        layers = [] if self.layers is None else [f"--layers={self.layers}"]
        return [sys.executable, str(MAKE), self.shape, str(folder), "--dtype", self.dtype, *layers]


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
    text = "what weights become while they are loaded (default: what they are)"
    parser.add_argument("--weights", choices=FORMATS, default=WeightScheme.AUTO.value, help=text)


def add_formats_option(parser: argparse.ArgumentParser) -> None:
    """Add the formats that are measured, one after the other."""
    text = "what weights become while they are loaded, one report each (default: what they are)"
    parser.add_argument("--weights", nargs="+", choices=FORMATS, default=[WeightScheme.AUTO.value], help=text)


def add_repeat_option(parser: argparse.ArgumentParser, default: int = 3) -> None:
    """Add how often is measured."""
    text = f"measurements that count (default {default})"
    parser.add_argument("--repeat", type=count, default=default, metavar="N", help=text)


def add_kernels_option(parser: argparse.ArgumentParser) -> None:
    """Add whether kernels are timed."""
    parser.add_argument("--kernels", action="store_true", help="open the model again and time every dispatch")


def check_model(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End the script with a message if there is no such model."""
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
        speculation=SpeculationMode.OFF,
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
