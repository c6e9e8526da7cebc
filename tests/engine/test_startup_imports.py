"""What a process imports before it opens Vulkan: the rest comes beside that, and beside the load."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

LATER = {"numpy", "tokenizers", "unicorn_async.checkpoint.checkpoint", "unicorn_async.step.runner"}


def modules_with(*names: str) -> set[str]:
    """Return what a process that imports these modules has imported."""
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    return set(done.stdout.split())


def test_the_engines_module_leaves_for_later_what_opening_vulkan_does_not_need() -> None:
    package = "unicorn_async.engine"
    assert not LATER & modules_with(f"{package}.engine")
    assert "numpy" not in modules_with(f"{package}.opening")  # whose first reads, and allocations, need not wait for it
    later = modules_with(f"{package}.opening", f"{package}.runner", f"{package}.request_stream")
    assert later >= LATER - {"tokenizers"}  # which only who encodes in this process imports
    assert "aiofiles" not in later | modules_with(f"{package}.model_library")  # traces alone need it


OPENED = """
import asyncio, json, sys, threading
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine

imported = {True: [], False: []}  # by whether the event loop's thread did it

class Finder:
    def find_spec(self, name, path=None, target=None):
        imported[threading.current_thread() is threading.main_thread()].append(name)

async def open_engine():
    config = EngineConfig(device=sys.argv[1], weight_cache=False, max_context=64)
    async with Engine.open("demo", config=config):
        pass

sys.meta_path.insert(0, Finder())
asyncio.run(open_engine())
print(json.dumps([imported[True], imported[False]]))
"""


def test_what_a_start_imports_it_imports_in_threads(device_info: DeviceInfo, cache_folder: Path) -> None:
    """So that a program that opens its first engine goes on with what else its event loop does."""
    run = [sys.executable, "-c", OPENED, str(device_info.index)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=240, check=True)
    in_loop, in_threads = map(set, json.loads(done.stdout))
    parts = LATER | {"unicorn_async.engine.opening", "unicorn_async.engine.runner"}
    assert in_threads >= parts - {"tokenizers"}  # which a large vocabulary has in a process of its own
    assert not in_loop & parts
    assert not (in_loop | in_threads) & {"llguidance", "unicorn_async.guidance.process"}  # nor without a grammar


SERVED = """
import socket, sys
from unicorn_async.cli import command_line
from unicorn_async.cli.main import main
from unicorn_async.engine import model_library

create, listeners = socket.create_server, []

def listening(*place, **options):
    listeners.append(" ".join(sys.modules))
    return create(*place, **options)

def opening():
    print(listeners[0])
    print(*sys.modules, flush=True)
    raise RuntimeError("the model is opened now")

command_line._begin_vulkan = lambda *arguments: None
socket.create_server = listening
model_library._import_engine = opening
main(["serve", "demo", "--port", "0", "--keep-model"])
"""


def test_a_port_is_open_before_anything_of_the_server_is_imported_and_serves_before_the_engine_is() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=240, check=False)
    assert "the model is opened now" in done.stderr
    listening, opening = (set(line.split()) for line in done.stdout.splitlines())
    engine = {
        "numpy",
        "vulkan",
        "unicorn_async.engine.engine",
        "unicorn_async.engine.files",
        "unicorn_async.gpu.device",
    }
    assert not listening & {*engine, "uvicorn", "starlette", "tokenizers", "websockets", "unicorn_async.server.app"}
    assert "uvicorn" in opening and "unicorn_async.server.app" in opening
    assert not opening & engine
