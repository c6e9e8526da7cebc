"""The clients of soak.py: some wait for whole answers, the others behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

PROMPTS = tuple(
    f"{begin} {what}."
    for begin in ("Tell me a story about", "Count from one to", "Write a poem about", "Explain to a child what")
    for what in ("a unicorn", "twenty", "the sea", "a computer is")
)
FORMED = ("A unicorn's name and age, as JSON.", "The sea's name and age, as JSON.")  # asked with a schema
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "maximum": 999, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LONG_TEXT = "The unicorn sees the sea. " * 700  # too long for the server's own process
MAX_TOKENS = 64
MAX_OVERTAKEN = 500  # answers that others get while one is waited for
SILENT_S = 600  # without any answer, on whatever machine
AGAIN_S = 0.5  # after an error event, which names no time
FINAL = ("response.completed", "response.incomplete", "response.failed", "error")
LOST = frozenset({"tokenizer_lost", "grammar_lost", "engine_failed"})  # what killed processes and lost devices lead to


def body(prompt: str, **more: object) -> dict[str, object]:
    """Return a request whose answer is always the same."""
    if prompt in FORMED:
        more["text"] = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}}
    return {"input": prompt, "temperature": 0, "max_output_tokens": MAX_TOKENS, **more}


async def get(url: str, path: str, *, as_json: bool = True) -> Any:
    """Return what a path has."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        found = await client.get(path)
        return found.json() if as_json else found.text


async def ask(url: str, prompt: str) -> str:
    """Return the answer to a prompt that is asked over HTTP.

    Raises:
        KeyError: it is none.
    """
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        answer = (await client.post("/v1/responses", json=body(prompt))).json()
    text: str = answer["output"][0]["content"][0]["text"]
    return text


class Clients:
    """Clients of a server, and what they have seen."""

    def __init__(self, url: str, alone: dict[str, str], choice: random.Random) -> None:
        parts = urlsplit(url)
        self._url, self._host, self._port = url, parts.hostname, parts.port
        self._alone = alone
        self._choice = choice
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._num_ids = 0  # of the long text, once it is known
        self._num_answers = 0
        self._last_answer_s = 0.0
        self._waits: dict[asyncio.Timeout, tuple[float, int]] = {}  # since when, and after how many answers

    async def run(self, num_answers: int, until: float) -> None:
        """Have them all do what they do until then."""
        bad = (self._cancels, self._goes, self._reads_slowly, self._pings, self._breaks_frames, self._breaks_requests)
        others = (self._formed_answer, self._long_text)
        waiting = [self._socket_answer, self._http_answer, self._chat_stream]
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for one in (*bad, *others, *(waiting[index % 3] for index in range(num_answers))):
                    group.create_task(self._again(one, until))
        finally:
            watching.cancel()

    def compare(self, prompt: str, text: str, expected: str) -> None:
        """Count an answer that is as it was alone; note another."""
        if prompt in self._alone:
            self._num_answers += 1
            self._last_answer_s = time.monotonic()
        self.counts["exact" if text == expected else "different"] += 1
        if text != expected and len(self.wrong) < 10:
            self.wrong.append(f"{prompt!r}: {text!r}, alone {expected!r}")

    async def _again(self, client: Callable[[str], Awaitable[None]], until: float) -> None:
        name = getattr(client, "__name__", "").strip("_")
        while time.monotonic() < until:
            began, answers = time.monotonic(), self._num_answers
            try:
                async with asyncio.timeout(None) as limit:
                    self._waits[limit] = began, answers
                    await client(self._choice.choice(PROMPTS))
            except TimeoutError:
                others, seconds = self._num_answers - answers, time.monotonic() - began
                self.wrong.append(f"{name}: no end after {seconds:.0f} s, in which others had {others} answers")
            except (OSError, httpx.HTTPError, WebSocketException) as exc:
                self.counts[f"{name}: {type(exc).__name__}"] += 1
            finally:
                del self._waits[limit]
            self.counts[name] += 1

    async def _watch(self) -> None:
        """End what is stuck. A slow machine has all of them wait, so a time alone says little."""
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            for limit, (began, answers) in self._waits.items():
                is_silent = now - max(began, self._last_answer_s) > SILENT_S
                if is_silent or self._num_answers - answers > MAX_OVERTAKEN:
                    limit.reschedule(asyncio.get_running_loop().time())

    def _failed(self, error: dict[str, Any]) -> None:
        """Note that an answer says why it is none; only some reasons are what the faults lead to."""
        self.counts[f"cut: {error.get('code')}"] += 1
        is_meant = error.get("code") in LOST or "VK_ERROR_DEVICE_LOST" in error.get("message", "")
        if not is_meant and len(self.wrong) < 10:
            self.wrong.append(f"an answer has ended with {error}")

    async def _refused(self, answer: httpx.Response, error: dict[str, Any]) -> None:
        """Note that a request is refused, and wait as long as that says."""
        self._failed(error)
        retry_after = answer.headers.get("retry-after", "")
        if answer.status_code == 503 and retry_after.isdigit():
            await asyncio.sleep(int(retry_after))
        elif len(self.wrong) < 10:
            self.wrong.append(f"expected 503 and when to ask again, got {answer.status_code}, {retry_after!r}: {error}")

    async def _socket_answer(self, prompt: str) -> None:
        async with connect(self._url.replace("http", "ws") + "/v1/responses", compression=None) as socket:
            for _ in range(5):
                await socket.send(json.dumps({"type": "response.create", **body(prompt)}))
                while (event := json.loads(await socket.recv()))["type"] not in FINAL:
                    pass
                if event["type"] in ("response.completed", "response.incomplete"):
                    text = event["response"]["output"][0]["content"][0]["text"]
                    self.compare(prompt, text, self._alone[prompt])
                else:
                    self._failed(event.get("response", event).get("error", event))
                    await asyncio.sleep(AGAIN_S)

    async def _http_answer(self, prompt: str) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=None) as client:
            reply = await client.post("/v1/responses", json=body(prompt))
        answer = reply.json()
        if answer.get("error"):
            await self._refused(reply, answer["error"])
        else:
            self.compare(prompt, answer["output"][0]["content"][0]["text"], self._alone[prompt])

    async def _formed_answer(self, prompt: str) -> None:
        await self._http_answer(self._choice.choice(FORMED))

    async def _long_text(self, prompt: str) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=None) as client:
            reply = await client.post("/tokenize", json={"prompt": LONG_TEXT})
        answer = reply.json()
        if answer.get("error"):
            await self._refused(reply, answer["error"])
        else:
            self._num_ids = self._num_ids or answer["count"]
            self.compare("a long text's number of tokens", str(answer["count"]), str(self._num_ids))
        await asyncio.sleep(0.2)

    async def _chat_stream(self, prompt: str) -> None:
        wanted = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "stream": True,
        }
        text, error = "", None
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=None) as client,
            client.stream("POST", "/v1/chat/completions", json=wanted) as answer,
        ):
            if answer.status_code != 200:
                await self._refused(answer, json.loads(await answer.aread())["error"])
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    error = error or event.get("error")
                    text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
        if error is not None:
            self._failed(error)
        else:
            self.compare(prompt, text, self._alone[prompt])

    async def _cancels(self, prompt: str) -> None:
        async with connect(self._url.replace("http", "ws") + "/v1/responses", compression=None) as socket:
            await socket.send(json.dumps({"type": "response.create", **body(prompt)}))
            for _ in range(self._choice.randrange(1, 12)):
                event = json.loads(await socket.recv())
                if event["type"] in FINAL:
                    return
            await socket.send(json.dumps({"type": "response.cancel"}))
            while json.loads(await socket.recv())["type"] not in FINAL:
                pass

    async def _goes(self, prompt: str) -> None:
        reader, writer = await self._asked(prompt)
        await reader.read(self._choice.randrange(1, 4000))
        writer.transport.abort()

    async def _reads_slowly(self, prompt: str) -> None:
        reader, writer = await self._asked(prompt, top_logprobs=5, include=["message.output_text.logprobs"])
        with contextlib.closing(writer):
            answer = b""
            while b"response.completed" not in answer and b"response.incomplete" not in answer:
                part = await reader.read(256)
                if not part or b"event: response.failed" in answer:
                    self.counts["slow reader without an answer"] += 1
                    return
                answer = (answer + part)[-4096:]
                await asyncio.sleep(0.005)

    async def _pings(self, prompt: str) -> None:
        _, writer = await self._upgraded()
        with contextlib.suppress(TimeoutError, ConnectionError):  # of so many frames that ask for nothing it is closed
            async with asyncio.timeout(1):
                for _ in range(20_000):
                    writer.write(b"\x89\xfd" + bytes(4) + prompt.encode().ljust(125))
                    await writer.drain()
        writer.transport.abort()

    async def _breaks_frames(self, prompt: str) -> None:
        reader, writer = await self._upgraded()
        writer.write(self._choice.randbytes(self._choice.randrange(1, 200)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read()
        writer.transport.abort()

    async def _breaks_requests(self, prompt: str) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        head = f"POST /v1/responses HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: 64\r\n\r\n".encode()
        writer.write(self._choice.choice((head, b"", b"GET / HTTP/1.1\r\n")) + self._choice.randbytes(64))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read()
        writer.transport.abort()

    async def _asked(self, prompt: str, **more: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        data = json.dumps(body(prompt, stream=True, **more)).encode()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1024)
        head = f"POST /v1/responses HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        return reader, writer

    async def _upgraded(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1024)
        key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
        head = f"GET /v1/responses HTTP/1.1\r\nhost: {self._host}\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        writer.write(f"{head}{key}\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer
