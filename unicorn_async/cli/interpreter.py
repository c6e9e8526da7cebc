"""How Python itself is set up in a process whose only purpose is a command."""

from __future__ import annotations

import gc
import os
import sys

_MOST_YOUNG = 50_000  # objects, some MB
_MOST_OF_START = 1_000_000  # a start makes a few hundred thousand, and nearly all of them stay
_SWITCH_S = 1e-3  # an import, a fifth of a second of Python, runs beside threads that read and drive the device


def set_up_interpreter() -> None:
    """Set up what costs a start time, before anything large is imported; what the environment says goes first.

    NumPy's library for matrix products, which nothing here computes, would start a thread for each core that spins for
    some 50 ms. The garbage collector, for which all threads would wait 15 to 45 ms at a time, looks at nothing before
    `settle_interpreter`. And a thread that comes back from a call of the system has Python's lock after a millisecond,
    not after five.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_MOST_OF_START, *gc.get_threshold()[1:])
    sys.setswitchinterval(_SWITCH_S)


def settle_interpreter() -> None:
    """Have the garbage collector look at young objects from now on, seldom, and at none that the start has made."""
    if gc.get_threshold()[0] == _MOST_OF_START:
        gc.freeze()
        gc.set_threshold(_MOST_YOUNG, *gc.get_threshold()[1:])


def release_start() -> None:
    """Have the garbage collector look at what the start has made, too: the model is gone that it made that for."""
    if gc.get_freeze_count():
        gc.unfreeze()
