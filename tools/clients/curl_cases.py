"""curl: the commands of the README and of docs/serving.md, and what a shell script does with their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cases import KEY, MODEL, URL, run


async def curl(path: str, body: dict[str, Any] | None = None, *options: str) -> str:
    data = () if body is None else ("-d", json.dumps(body))
    command = ("curl", "-sS", "-N", "-H", f"Authorization: Bearer {KEY}", *data, *options, f"{URL}{path}")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def health_and_models() -> None:
    assert json.loads(await curl("/health"))["status"] == "ready"
    assert MODEL in await curl("/v1/models")


async def whole_answers() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert json.loads(await curl("/v1/responses", {"input": "Hi", "max_output_tokens": 8}))["output"]
    assert json.loads(await curl("/v1/chat/completions", {"messages": messages, "max_tokens": 8}))["choices"]
    assert json.loads(await curl("/v1/completions", {"prompt": "Once", "max_tokens": 8}))["choices"]


async def a_stream_ends() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True}
    assert (await curl("/v1/chat/completions", body)).rstrip().endswith("data: [DONE]")
    events = await curl("/v1/responses", {"input": "Hi", "max_output_tokens": 8, "stream": True})
    assert "event: response.completed" in events or "event: response.incomplete" in events


async def headers_and_versions_of_http() -> None:
    body = {"input": "Hi", "max_output_tokens": 4}
    assert "x-request-id: mine" in (await curl("/v1/responses", body, "-i", "-H", "X-Request-Id: mine")).lower()
    assert json.loads(await curl("/v1/responses", body, "--http1.0"))["output"]
    assert json.loads(await curl("/v1/responses", body, "-H", "Expect: 100-continue"))["output"]
    assert json.loads(await curl("/v1/responses", body, "--compressed", "--http2"))["output"]


async def errors_have_a_status() -> None:
    said = await curl("/v1/responses", {"inptu": "Hi"}, "-w", "%{http_code}")
    assert said.endswith("400")
    assert "inptu" in said


if __name__ == "__main__":
    run(
        None,
        [health_and_models, whole_answers, a_stream_ends, headers_and_versions_of_http, errors_have_a_status],
    )
