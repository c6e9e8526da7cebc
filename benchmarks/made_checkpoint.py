"""Checkpoints that the scripts make with tools/make_checkpoint.py: what was made is removed again, and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.checkpoint import CONFIG_FILE, INDEX_FILE, Checkpoint
from unicorn_async.errors import UnicornError

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from make_checkpoint import SHAPES, config, tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

MAKE = Path(__file__).parent.parent / "tools" / "make_checkpoint.py"
WRITTEN = (CONFIG_FILE, INDEX_FILE, "model-*-of-*.safetensors", "tokenizer.json", "tokenizer_config.json")  # by it


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
