#!/usr/bin/env python3
"""Run the clients that people have, unmodified, against a server, and print what works.

    unicorn demo --port 8000 &
    python tools/check_clients.py [--url http://127.0.0.1:8000] [--model unicorn-demo] [--key KEY]
                                  [--clients openai,langchain] [--venvs ~/.cache/unicorn_async/clients]

Each client gets a virtual environment of its own, which is kept: they are heavy, and want different versions of the
same packages. What they are asked to do is in tools/clients/. Answers are checked by their form, so any model with a
chat template will do. Exit status 1: something did not work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).parent / "clients"
TIME_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Client:
    """What is installed for it, and the file with its cases."""

    name: str
    packages: tuple[str, ...]
    script: str


CLIENTS = (
    Client("openai", ("openai[realtime]",), "openai_cases.py"),
    Client("openai-2.40", ("openai[realtime]==2.40.0",), "openai_cases.py"),
    Client("openai-agents", ("openai-agents",), "agents_cases.py"),
    Client("langchain", ("langchain", "langchain-openai"), "langchain_cases.py"),
    Client("litellm", ("litellm",), "litellm_cases.py"),
    Client("open-webui", (), "open_webui_cases.py"),
    Client("curl", (), "curl_cases.py"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case; `problem` is None where it works."""

    client: str
    case: str
    problem: str | None


def interpreter(client: Client, folder: Path) -> str:
    """Return the Python that has the client, which is installed if it isn't there."""
    if not client.packages:
        return sys.executable
    place = folder / client.name
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *client.packages], check=True)
    return str(python)


def outcomes(client: Client, python: str, environment: dict[str, str]) -> list[Outcome]:
    """Run a client's cases; what ends their process is one that does not work."""
    command = [python, str(CASES / client.script)]
    found: list[Outcome] = []
    name = client.name
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        return [Outcome(name, "all", f"took more than {TIME_LIMIT_S} s")]
    for line in done.stdout.splitlines():
        if not line.startswith('{"'):  # what a library prints
            continue
        said = json.loads(line)
        if "version" in said:
            name = f"{client.script.removesuffix('_cases.py')} {said['version'] or ''}".strip()
        else:
            found.append(Outcome(name, said["case"], said["problem"]))
    if done.returncode or not found:
        found.append(Outcome(name, "all", (done.stderr.strip() or "no case ran").splitlines()[-1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="unicorn-demo")
    parser.add_argument("--key", default="unused")
    parser.add_argument("--clients", default=",".join(client.name for client in CLIENTS))
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "unicorn_async" / "clients")
    args = parser.parse_args()
    wanted = args.clients.split(",")
    unknown = set(wanted) - {client.name for client in CLIENTS}
    if unknown:
        parser.error(f"--clients: {', '.join(sorted(unknown))}: known are {', '.join(c.name for c in CLIENTS)}")
    environment = os.environ | {"UNICORN_URL": args.url, "UNICORN_MODEL": args.model, "UNICORN_KEY": args.key}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched beside the packages
    failures = 0
    for client in CLIENTS:
        if client.name not in wanted:
            continue
        began = time.perf_counter()
        found = outcomes(client, interpreter(client, args.venvs), environment)
        failed = [outcome for outcome in found if outcome.problem]
        failures += len(failed)
        seconds = time.perf_counter() - began
        works = len(found) - len(failed)
        print(f"{found[0].client:24} {works:3} of {len(found):3} work  ({seconds:.0f} s)", flush=True)
        for outcome in failed:
            print(f"    {outcome.case}: {outcome.problem}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
