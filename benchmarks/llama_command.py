"""A command of llama.cpp's on the scripts' command lines; llama_load_time.cpp is one that prints what they read."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "{file}"


@dataclass(frozen=True, slots=True)
class LlamaCommand:
    """A command whose words have the file's name in place of {file}."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> LlamaCommand:
        """Parse a command as a shell splits it; the type of an argument."""
        try:
            words = shlex.split(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r}: {exc}") from None
        if not any(PLACE in word for word in words[1:]):
            raise argparse.ArgumentTypeError(f"expected a command with {PLACE} for the model's file, got {text!r}")
        if shutil.which(words[0]) is None:
            raise argparse.ArgumentTypeError(f"{words[0]}: no such command")
        return cls(tuple(words))

    def run(self, file: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run it on a file."""
        command = [word.replace(PLACE, str(file)) for word in self.words]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def __str__(self) -> str:
        """Return it as a shell would take it."""
        return shlex.join(self.words)
