"""How a command sets up Python: in a process of its own, since all of it is the process's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import gc, os, sys, time
before = gc.get_threshold()[0], sys.getswitchinterval()
from unicorn_async.cli.main import main
main(["inspect", "/nonexistent"])
import numpy
for _ in range(600):  # a thread that was waited for is a task a moment longer; numpy's own stay
    if len(tasks := os.listdir("/proc/self/task")) == 1:
        break
    time.sleep(0.01)
print(len(tasks), os.environ["OPENBLAS_NUM_THREADS"])
print(gc.get_threshold()[0] > before[0], sys.getswitchinterval() < before[1])
"""


def lines_of(environ: dict[str, str]) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=clean | environ)
    return done.stdout.splitlines()


def test_a_command_that_imports_numpy_has_no_threads_of_it() -> None:
    assert lines_of({})[0] == "1 1"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the library starts a thread for each core beyond the first")
def test_the_environment_may_ask_for_them() -> None:
    assert lines_of({"OPENBLAS_NUM_THREADS": "2"})[0].endswith(" 2")


def test_collections_are_seldom_and_threads_take_turns_often() -> None:
    assert lines_of({})[1] == "True True"


SETTLING = """
import gc
from unicorn_async.cli.interpreter import release_start, set_up_interpreter, settle_interpreter
own = gc.get_threshold()[0]
settle_interpreter()
release_start()
assert (gc.get_threshold()[0], gc.get_freeze_count()) == (own, 0)  # not set up: a program that embeds this

collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
set_up_interpreter()
made = [[] for _ in range(300_000)]
assert not collections
settle_interpreter()
assert gc.get_freeze_count() > len(made)
more = [[] for _ in range(60_000)]
assert collections
settle_interpreter()
release_start()
assert gc.get_freeze_count() == 0
print("ok")
"""


def test_a_start_is_not_collected_before_it_is_over_and_not_looked_at_while_its_model_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLING], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "ok\n", done.stderr
