#!/usr/bin/env python3
"""What it costs that somebody watches the steps: tokens a second with and without a watcher, in turns.

    watch.py MODEL [--streams N] [--seconds S] [--rounds R] [--device DEVICE]

The server runs as `unicorn serve` does, with answers over its websocket to a client in another process; the watcher
is a process of its own, too, and reads ten events a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time

from command_line import run_script

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.engine.engine import Engine
from unicorn_async.server import serve

WATCHER = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], compression=None) as socket:
    socket.send('{"type": "unicorn.watch", "interval_ms": 100}')
    while True:
        socket.recv()
"""
ASKER = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1], compression=None) as socket:
    def ask(stream):
        body = {"input": "Write the numbers from one to one hundred.", "store": False}
        socket.send(json.dumps({"type": "response.create", "stream_id": stream, **body}))
    for index in range(int(sys.argv[2])):
        ask(str(index))
    while True:
        event = json.loads(socket.recv())
        if event["type"] in ("response.completed", "response.incomplete"):
            ask(event["stream_id"])
"""


async def rate(engine: Engine, seconds: float) -> float:
    """Return the tokens a second that the engine generates now."""
    before, started = engine.stats().tokens_generated, time.perf_counter()
    await asyncio.sleep(seconds)
    return (engine.stats().tokens_generated - before) / (time.perf_counter() - started)


async def measure(options: argparse.Namespace) -> None:
    """Take turns, and print."""
    config = EngineConfig(
        device=options.device, max_context=1024, max_num_seqs=options.streams, speculation=SpeculationMode.OFF
    )
    async with Engine.open(options.model, config=config) as engine:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(engine, port=0, on_ready=ready.set_result))
        url = (await ready).replace("http", "ws") + "/v1/responses"
        await engine.loaded()
        asker = await asyncio.create_subprocess_exec(sys.executable, "-c", ASKER, url, str(options.streams))
        rates: dict[bool, list[float]] = {False: [], True: []}
        try:
            await asyncio.sleep(2)
            for turn in range(2 * options.rounds):
                is_watched = bool((turn + turn // 2) % 2)  # in the order 0 1 1 0 0 1 …
                watcher = None
                if is_watched:
                    watcher = await asyncio.create_subprocess_exec(sys.executable, "-c", WATCHER, url)
                await asyncio.sleep(1)
                rates[is_watched].append(await rate(engine, options.seconds))
                if watcher is not None:
                    watcher.kill()
                    await watcher.wait()
        finally:
            asker.kill()
            await asker.wait()
            server.cancel()
            await asyncio.wait([server])
        device = engine.device
    without, watched = (statistics.median(rates[key]) for key in (False, True))
    kind = " (software)" if device.is_software else ""
    print(f"{device.name}{kind}, {options.streams} streams, {options.rounds} rounds")
    print(f"tokens/s: {without:.1f} alone, {watched:.1f} watched, ratio {watched / without:.4f}")
    if options.json:
        print(json.dumps({"alone": rates[False], "watched": rates[True]}))


def main() -> None:
    """Parse, and measure."""
    parser = argparse.ArgumentParser(description="What it costs that somebody watches the steps.")
    parser.add_argument("model")
    parser.add_argument("--streams", type=count, default=8, metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each turn")
    parser.add_argument("--rounds", type=count, default=4, metavar="R", help="each with a turn of either kind")
    parser.add_argument("--device", metavar="DEVICE")
    parser.add_argument("--json", action="store_true", help="print every turn's rate, too")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    run_script(main)
