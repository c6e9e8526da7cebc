"""Runs the `unicorn` command in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RUN = [sys.executable, "-c", "import sys; from unicorn_async.cli.main import main; sys.exit(main())"]
SOFTWARE_DRIVERS = tuple(
    path for folder in ("/usr/share", "/etc") for path in sorted(Path(folder, "vulkan/icd.d").glob("lvp_icd*.json"))
)
# What PYTHONASYNCIODEBUG=1 has a loop tell of each turn that took a tenth of a second: on a busy machine any may.
_SLOW_TURN = re.compile(r"^.*Executing <.*> took \d+\.\d+ seconds\n", re.MULTILINE)
NO_DRIVER = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"}


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished command left."""

    status: int
    stdout: str
    stderr: str


def software_only() -> dict[str, str]:
    """Environment in which Vulkan has the software device alone, whatever the machine has."""
    drivers = ":".join(map(str, SOFTWARE_DRIVERS))
    return {"VK_DRIVER_FILES": drivers, "VK_ICD_FILENAMES": drivers}


def unicorn(*arguments: str, environ: dict[str, str] | None = None, stdin: str = "") -> Result:
    """Run `unicorn` with these arguments to its end."""
    done = subprocess.run(
        [*RUN, *arguments],
        env={**os.environ, **(environ or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return Result(done.returncode, done.stdout, _SLOW_TURN.sub("", done.stderr))
