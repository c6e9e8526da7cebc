"""What docs/deploy has goes with the options and the metrics that there are."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from unicorn_async.cli import serve
from unicorn_async.cli.settings import parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy"


def parsed(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parse_settings(parser, given, {})


def test_the_file_of_options_is_one() -> None:
    options = parsed(["--config", str(DEPLOY / "unicorn.toml")])
    assert (options.model, options.log_format) == ("/srv/models/gemma-3-12b-it", "json")


def test_the_unit_starts_the_server_and_waits_for_its_drain() -> None:
    unit = (DEPLOY / "unicorn.service").read_text()
    command = re.search(r"^ExecStart=\S+/unicorn serve (.*)$", unit, re.MULTILINE)
    limit = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert command is not None and limit is not None
    given = command[1].replace("/etc/unicorn/unicorn.toml", str(DEPLOY / "unicorn.toml")).split()
    assert parsed(given).drain < int(limit[1])


def test_the_container_starts_the_server() -> None:
    entry = re.search(r"^ENTRYPOINT (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert entry is not None
    program, command, *given = json.loads(entry[1])
    assert (program, command) == ("/opt/unicorn/bin/unicorn", "serve")
    assert parsed(given).drain < 10  # which podman and Docker give it


async def test_the_board_shows_metrics_that_there_are() -> None:
    async with serving(FakeEngine()) as served, httpx.AsyncClient(base_url=served.url) as client:
        text = (await client.get("/metrics")).text
    there = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    shown = {
        name.removesuffix("_bucket")
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"\b(?:unicorn|process)_\w+", target["expr"])
    }
    assert shown <= there
    assert len(shown) > 12
