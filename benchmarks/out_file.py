"""Files that scripts write at the end of what may take an hour: whether they can be written is seen at its start."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def out_file(text: str) -> Path:
    """Parse the name of a file to write, the type of an argument; the file is not touched yet."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: can't be written")
    return path
