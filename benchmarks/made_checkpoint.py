"""Checkpoints that the scripts make with tools/make_checkpoint.py: what was made is removed again, and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAKE = Path(__file__).parent.parent / "tools" / "make_checkpoint.py"


@dataclass(frozen=True, slots=True)
class MadeCheckpoint:
    """A checkpoint of random weights: a shape of tools/make_checkpoint.py, `layers` of it (None: all)."""

    shape: str
    dtype: str
    layers: int | None = None

    def refusal(self, folder: Path) -> str:
        """Say why a folder can't be where the checkpoint lies, or is written; "" if it can be."""
        if not folder.exists() or (folder / "config.json").exists():
            return ""
        if not folder.is_dir():
            return f"{folder} is no directory"
        if any(folder.iterdir()):
            return f"{folder} is neither empty nor a checkpoint: nothing is written there"
        return ""

    @contextlib.contextmanager
    def in_folder(self, folder: Path | None, *, keep: bool) -> Iterator[Path]:
        """Yield the folder (None: a temporary one) with the checkpoint, which is made unless it is there.

        At the end the files that were made are removed unless they are to be kept, and the folder if it was made; of
        what else has come to be in it nothing is.
        """
        if folder is not None and (folder / "config.json").exists():
            yield folder
            return
        is_new = folder is None or not folder.exists()
        folder = Path(tempfile.mkdtemp(prefix="unicorn-bench-")) if folder is None else folder
        folder.mkdir(parents=True, exist_ok=True)
        before, made = set(folder.iterdir()), set[Path]()
        try:
            try:
                self.make(folder)
            finally:
                made = set(folder.iterdir()) - before
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
        subprocess.run(self.command(folder), check=True)

    def command(self, folder: Path) -> list[str]:
        """Return what writes it."""
        layers = [] if self.layers is None else [f"--layers={self.layers}"]
        return [sys.executable, str(MAKE), self.shape, str(folder), "--dtype", self.dtype, *layers]
