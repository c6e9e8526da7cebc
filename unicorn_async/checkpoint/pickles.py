"""Weights in pickles, which are refused by their names: opening one may run any code of whoever wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


def refuse_pickles(where: object, names: Iterable[str]) -> None:
    """Raise UnsupportedModelError if one of the files is a pickle by its name; it says what can be done."""
    pickles = sorted(name for name in names if name.endswith(_SUFFIXES))
    if pickles:
        raise UnsupportedModelError(
            f"{where}: weights in {pickles[0]}, a pickle, which is never opened since it may run any code; only "
            "safetensors and GGUF files are supported. Take the model in one of these, or, where its author is "
            "trusted, write what torch.load(…, weights_only=True) returns to a model.safetensors of its own directory "
            "with safetensors.torch.save_file"
        )


def refuse_pickles_in(directory: Path) -> None:
    """Raise UnsupportedModelError if a file of a directory is a pickle by its name."""
    refuse_pickles(directory, (path.name for path in directory.glob("*")))
