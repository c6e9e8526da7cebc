"""How scripts end that an engine refuses: by one line, and no traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, RequestError, UnicornError

if TYPE_CHECKING:
    from collections.abc import Callable


def run_script(main: Callable[[], None]) -> None:
    """Run a script; what its options ask for in vain ends it with status 2, all other errors of an engine with 1."""
    try:
        main()
    except UnicornError as exc:
        print(f"{Path(sys.argv[0]).name}: {' '.join(str(exc).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, ConfigError | RequestError) else 1)
