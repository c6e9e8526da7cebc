#!/usr/bin/env python3
"""A server among clients that behave badly, and faults: whether answers stay exact, and everything comes back.

    soak.py [--minutes M] [--answers N] [--seed S] [--faults killed disk device] [--json FILE]
            [-- OPTIONS OF `unicorn demo`]

`unicorn demo` is started as users do, with a store on disk. Each prompt is asked alone first, at temperature 0. Then N
clients ask them over the websocket and over HTTP, beside others that cancel, go away amid an answer, read slowly, ping
without reading, and send what is no frame and no request. Every half minute the processes are killed that tokenise
long texts and compute grammars, and for some seconds no file of the server's may grow, as on a full disk. Every five
minutes, and at least once, the driver says that the device is lost (device_loss.py), and the server has to serve again.
--faults names those that are wanted, none of them at all if it has no names.
What is cut by such a fault has to say so by an error, and what is refused after it has to say when to ask again; every
other answer has to be the one that came alone. In the end, with nobody connected, /health and /metrics have to show no
request, no websocket, and no more blocks than before; the process no more open files, no more threads than those of
asyncio's executor, and no more memory than the limit below; nothing may have been left on a device that was closed.
The status is 1 where one of that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_line import out_file, positive, run_script
from soak_clients import FORMED, PROMPTS, Clients, ask, get
from soak_process import LOSING, ServerProcess

from unicorn_async.cli.options import count

if TYPE_CHECKING:
    from collections.abc import Collection

KILLED, DISK, DEVICE = FAULTS = ("killed", "disk", "device")
FAULT_EVERY_S = 30
FULL_FOR_S = 5
LOSS_EVERY_S = 300
BACK_AFTER_S = 180  # at the latest: a row of failures has waits of up to a minute between them
EXECUTOR_THREADS = min(32, (os.cpu_count() or 1) + 4)  # that Python's own starts one by one, as many are wanted
MAX_MORE_FILES = 1  # what leads to a second copy of the template's process, made when two conversations come at once
MAX_GROWTH_BYTES = 96 << 20  # of memory that the process itself has


async def faults(server: ServerProcess, clients: Clients, kinds: Collection[str], until: float) -> None:
    """Kill the tokenizer's and the grammars' processes, fill the disk, and now and then lose the device, in turns."""
    next_loss = time.monotonic()
    while time.monotonic() + FAULT_EVERY_S < until:
        if DEVICE in kinds and time.monotonic() >= next_loss:
            next_loss += LOSS_EVERY_S
            await lose_device(server, clients)
        await asyncio.sleep(FAULT_EVERY_S / 2)
        for _ in range(20):  # a tokenizer's process lives as long as long texts are there
            if KILLED in kinds:
                clients.counts["processes killed"] += server.kill_children()
            await asyncio.sleep(0.1)
        await asyncio.sleep(FAULT_EVERY_S / 2 - FULL_FOR_S)
        with server.full_disk() if DISK in kinds else contextlib.nullcontext():
            await asyncio.sleep(FULL_FOR_S)
        clients.counts["disk full"] += DISK in kinds


async def lose_device(server: ServerProcess, clients: Clients) -> None:
    """Lose the device, and see the server serve again."""
    began = time.monotonic()
    server.lose_device()
    while time.monotonic() - began < BACK_AFTER_S:
        await asyncio.sleep(0.2)
        if server.num_lost == server.num_losses and (await get(server.url, "/health"))["status"] == "ready":
            clients.counts["device lost"] += 1
            clients.counts["seconds without a device"] += round(time.monotonic() - began)
            return
    clients.wrong.append(f"the server does not serve {BACK_AFTER_S} s after its device was lost")


async def until_ready(server: ServerProcess) -> None:
    """Wait until the server serves, as it does again after the last loss, but for no longer than that may take."""
    for _ in range(2 * BACK_AFTER_S):
        if (await get(server.url, "/health"))["status"] == "ready":
            return
        await asyncio.sleep(0.5)


async def settled(server: ServerProcess, blocks: int) -> dict[str, Any]:
    """Return how the server is once nothing is under way any more, or after half a minute."""
    for _ in range(60):
        stats = (await get(server.url, "/health"))["stats"]
        if not stats["running"] and not stats["waiting"] and stats["blocks_used"] <= blocks:
            break
        await asyncio.sleep(0.5)
    return await state_of(server)


async def state_of(server: ServerProcess) -> dict[str, Any]:
    """Return what has to be the same before and after."""
    health, text = await get(server.url, "/health"), await get(server.url, "/metrics", as_json=False)
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {
        "status": health["status"],
        "running": health["stats"]["running"],
        "waiting": health["stats"]["waiting"],
        "blocks_used": health["stats"]["blocks_used"],
        "websockets": int(values["unicorn_websockets"]),
        "store": health["store"],
        **server.held(),
    }


def complaints(before: dict[str, Any], after: dict[str, Any], clients: Clients) -> list[str]:
    """Return what is not as it has to be."""
    found = list(clients.wrong)
    expected = {"status": "ready", "running": 0, "waiting": 0, "websockets": 0}
    found += [
        f"{name}: expected {value}, got {after[name]}" for name, value in expected.items() if after[name] != value
    ]
    more_files = after["files"].total() - before["files"].total()
    if more_files > MAX_MORE_FILES:
        found.append(f"{more_files} more files are open: {after['files'] - before['files']}")
    for name, more in {"blocks_used": 0, "threads": EXECUTOR_THREADS, "children": 0}.items():
        if after[name] > before[name] + more:
            found.append(f"{name}: {before[name]} before, {after[name]} after")
    growth = after["bytes"] - before["bytes"]
    if growth > MAX_GROWTH_BYTES:
        found.append(f"memory has grown by {growth:,} bytes")
    if after["store"]["error"] is not None:
        found.append(f"the store has not come back: {after['store']}")
    return found


async def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run it all and return the figures."""
    places = 2 * options.answers + 256  # a client may ask on before the place of its last request is free
    limits = {"max-connections": 4 * places, "max-client-connections": places, "max-client-requests": places}
    flags = ["--log-format=json", *(f"--{name}={value}" for name, value in limits.items())]
    flags += ["--store", str(folder / "responses.db"), *options.server]
    async with ServerProcess.started(flags, LOSING) as server:
        alone = {prompt: await ask(server.url, prompt) for prompt in (*PROMPTS, *FORMED)}
        clients = Clients(server.url, alone, random.Random(options.seed))
        async with asyncio.TaskGroup() as group:  # what is made once is there after that
            group.create_task(clients.run(options.answers, time.monotonic() + 15))
            if DEVICE in options.faults:
                group.create_task(lose_device(server, clients))
        await ask(server.url, FORMED[0])  # whatever the end was of, the process that computes grammars is there
        await asyncio.sleep(2)
        before = await state_of(server)
        clients.counts.clear()
        until = time.monotonic() + 60 * options.minutes
        async with asyncio.TaskGroup() as group:
            group.create_task(faults(server, clients, options.faults, until))
            group.create_task(clients.run(options.answers, until))
        await until_ready(server)
        for prompt, text in alone.items():
            clients.compare(prompt, await ask(server.url, prompt), text)
        after = await settled(server, before["blocks_used"])
        found = complaints(before, after, clients)
        if DEVICE in options.faults and not clients.counts["device lost"]:
            found.append("the time was too short for a lost device")
        status = await server.stop()
        if server.num_lost != server.num_losses:
            found.append(f"the device was lost {server.num_losses} times, the engine {server.num_lost} times for that")
        if status or server.errors:
            found.append(f"status {status}, errors: {server.errors[:5]}")
    return {"counts": dict(clients.counts), "before": before, "after": after, "wrong": found, "log": server.tail()}


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=positive, default=60.0, help="default 60")
    parser.add_argument("--answers", type=count, default=8, help="clients that wait for whole answers (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=FAULTS, help="which ones (default all)")
    parser.add_argument("--json", type=out_file, help="write the figures there, too")
    parser.add_argument("server", nargs="*", metavar="OPTION", help="options of `unicorn demo`, behind --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unicorn-soak-") as folder:
        figures = asyncio.run(soak(options, Path(folder)))
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    if figures["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    run_script(main)
