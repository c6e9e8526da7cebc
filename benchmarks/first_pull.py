#!/usr/bin/env python3
"""How long people wait for the first token of a model that has to be downloaded first.

    first_pull.py MODEL --rate 50 [--repeat 3] [--question TEXT] [--json FILE] [-- OPTION ...]

MODEL is a GGUF file, or a directory in Hugging Face's layout. A server in this process, on 127.0.0.1, speaks the hub's
endpoints and sends so many megabytes a second. In a round, each time with an empty cache of the hub's:

    streamed       `unicorn serve NAME --pull`, which loads the model as it comes
    pulled first   `unicorn pull NAME`, and then `unicorn serve NAME`
    on disk        `unicorn serve NAME` once more, for comparison

Written are seconds from the start of the first process to the first piece of an answer's text, which is asked for over
a websocket as soon as one can connect, for how many of them the last byte had been sent, and the server's CPU seconds.
A start before the rounds fills the folders of the other caches, ours and the drivers'. OPTIONs are added to
`unicorn serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import out_file, positive, run_script
from first_answer import CACHE_FOLDERS, FILL_S, QUESTION, Server, ServerError, all_of, ask_unicorn

from tests.hub.hub_server import HubServer
from unicorn_async.cli.options import count

NAME = "org/model"
UNICORN = (sys.executable, "-m", "unicorn_async")
WAYS = ("streamed", "pulled first", "on disk")


async def served(options: argparse.Namespace, environ: dict[str, str], *more: str, stay_s: float = 0.0) -> Server:
    """Start a server, ask, and end it; returns what it noted."""
    words = [*UNICORN, "serve", NAME, *more, *options.options]
    server = Server(lambda port: [*words, "--port", str(port)], environ)
    with contextlib.closing(server):
        await server.connected()
        await all_of(server.watch("ready"), ask_unicorn(server, options.question))
        await asyncio.sleep(stay_s)
    return server


def pulled(environ: dict[str, str]) -> None:
    """Run `unicorn pull`."""
    ended = subprocess.run([*UNICORN, "pull", NAME], env=os.environ | environ, capture_output=True, text=True)
    if ended.returncode:
        raise ServerError(f"unicorn pull: {ended.stderr[-500:]}")


def measure(options: argparse.Namespace, hub: HubServer) -> dict[str, list[dict[str, float]]]:
    """Run the rounds; seconds by way."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as full:
        kept = dict.fromkeys(CACHE_FOLDERS, full) | {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "", "HF_TOKEN": ""}
        for number in range(-1, options.repeat):
            for way in WAYS[:2]:
                with tempfile.TemporaryDirectory() as cache:
                    environ = kept | {"HF_HUB_CACHE": cache}
                    begun = time.monotonic()
                    if way == WAYS[0]:
                        hub.bytes_per_s = options.rate * 1e6 if number >= 0 else 1e9
                        server = asyncio.run(served(options, environ, "--pull", stay_s=FILL_S if number < 0 else 0.0))
                    elif number >= 0:
                        pulled(environ)
                        server = asyncio.run(served(options, environ))
                    else:
                        continue
                    # Counted from its own start, which is that of the pull's end.
                    lead = server.begun - begun
                    seconds = {"first token": lead + server.start.seconds["first token"]}
                    seconds["after the last byte"] = seconds["first token"] - (hub.last_sent - begun)
                    seconds["cpu"] = server.start.seconds["cpu"]
                    note(found, number, way, seconds)
                    if way == WAYS[1]:
                        server = asyncio.run(served(options, environ))
                        note(found, number, WAYS[2], {"first token": server.start.seconds["first token"]})
    return found


def note(found: dict[str, list[dict[str, float]]], number: int, way: str, seconds: dict[str, float]) -> None:
    """Keep and print a start, unless it only filled the caches."""
    if number >= 0:
        found[way].append(seconds)
        print(f"{number + 1} {way}: " + ", ".join(f"{what} {value:.2f}" for what, value in seconds.items()), flush=True)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Seconds to the first token of a model that is downloaded.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rate", type=positive, required=True, metavar="MB_S", help="megabytes a second that are sent")
    parser.add_argument("--repeat", type=count, default=3, metavar="N", help="rounds (default 3)")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--json", type=out_file, metavar="FILE")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.options = given[end + 1 :]
    paths = [options.model] if options.model.is_file() else [path for path in options.model.iterdir() if path.is_file()]
    files = {path.name: path.read_bytes() for path in paths}
    print(f"{sum(map(len, files.values())) / 1e6:.1f} MB at {options.rate:g} MB/s")
    with HubServer({NAME: files}) as hub:
        found = measure(options, hub)
    for way, starts in found.items():
        for what in starts[0]:
            values = sorted(start[what] for start in starts)
            print(f"{way:14} {what:20} {statistics.median(values):7.2f} s ({values[0]:.2f} to {values[-1]:.2f})")
    if options.json is not None:
        options.json.write_text(json.dumps({"model": str(options.model), "rate": options.rate, "starts": found}))


if __name__ == "__main__":
    run_script(main)
