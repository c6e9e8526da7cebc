"""Open WebUI's requests to a server of OpenAI's API, as release 0.12.4 sends them."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cases import KEY, MODEL, URL, run

REQUESTS = json.loads((Path(__file__).parents[2] / "tests/server/clients/open_webui.json").read_text())


def ask(path: str, body: dict[str, Any] | None = None) -> str:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body | {"model": MODEL}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1{path}", data, headers)) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as exc:
        raise AssertionError(f"{exc.code}: {exc.read().decode()}") from exc


async def models() -> None:
    found = json.loads(await asyncio.to_thread(ask, "/models"))
    assert MODEL in [model["id"] for model in found["data"]]


def of(request: dict[str, Any]) -> Any:
    async def case() -> None:
        text = await asyncio.to_thread(ask, request["path"], request["body"])
        if request["body"].get("stream"):
            assert text.startswith(("data: ", "event: ")), text[:80]
        elif request["path"] == "/chat/completions":
            assert json.loads(text)["choices"][0]["message"]["content"] is not None
        else:
            assert json.loads(text)["output"]

    case.__name__ = request["name"]
    return case


if __name__ == "__main__":
    run(None, [models, *map(of, REQUESTS)])
