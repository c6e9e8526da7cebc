"""How scripts end that an engine refuses, or a user: by one line, or none, and no traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from process_group import end_with_signals

from unicorn_async.errors import ConfigError, RequestError, UnicornError

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130


def run_script(main: Callable[[], None]) -> None:
    """Run a script; what its options ask for in vain ends it with status 2, all other errors of an engine with 1.

    Ctrl-C ends it with 130, as a shell says it; SIGTERM and SIGHUP let it remove what it made, too.
    """
    end_with_signals()
    try:
        main()
    except UnicornError as exc:
        print(f"{Path(sys.argv[0]).name}: {' '.join(str(exc).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, ConfigError | RequestError) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
