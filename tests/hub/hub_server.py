"""A local server with the endpoints of the Hugging Face hub that a download takes; it can fail as networks do."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

REVISION = "0123456789abcdef0123456789abcdef01234567"
_PIECE_S = 0.01
_BURST_S = 0.5  # for which what could not be sent in time is made up
_LARGE_BYTES = 1000  # from here on files are stored apart, with a SHA-256


@functools.cache
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@functools.cache
def _sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@dataclass
class HubServer:
    """Serves repositories, each a mapping from names of files to their bytes, at `endpoint` while it is entered.

    `cuts` are the bytes after which the next connections for large files end. `listed` replaces sizes in the listing,
    `sent` the bytes of a file in its answers. `token` is what clients have to send. With `store` files are at
    another address, which is no longer good when a connection was cut. With `passes_over_ranges` every answer is a
    whole file. No more than `bytes_per_s` are sent to all clients together. `asked` are all requests so far.
    """

    repos: Mapping[str, Mapping[str, bytes]]
    cuts: list[int] = field(default_factory=list)
    listed: dict[str, int] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None
    gated: bool = False
    store: bool = False
    passes_over_ranges: bool = False
    bytes_per_s: float | None = None
    last_sent: float = 0.0  # time.monotonic() of the last piece of those
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range

    def __enter__(self) -> Self:
        hub = self
        self._pace, self._due = threading.Lock(), 0.0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self, body=True)

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fetched(self) -> list[str]:
        """Names of the files whose bytes were asked for, in order."""
        return [
            path.split("/resolve/")[1].split("/", 1)[1]
            for method, path, _ in self.asked
            if method == "GET" and "/resolve/" in path
        ]

    def _answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlparse(handler.path).path)
        self.asked.append((handler.command, path, handler.headers.get("Range")))
        assert not path.startswith("/store/") or handler.headers.get("Authorization") is None, "a token goes elsewhere"
        if (
            self.token is not None
            and not path.startswith("/store/")
            and handler.headers.get("Authorization") != f"Bearer {self.token}"
        ):
            self._refuse(handler, 401, "RepoNotFound")
        elif path.startswith("/store/"):
            self._stored(handler, path)
        elif path.startswith("/api/models/"):
            self._listing(handler, path)
        else:
            self._file(handler, path, body=body)

    def _listing(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        name = path.removeprefix("/api/models/").split("/revision/")[0].split("/tree/")[0]
        if name not in self.repos:
            self._refuse(handler, 404, "RepoNotFound")
            return
        if self.gated:
            self._refuse(handler, 403, "GatedRepo")
            return
        described = [self._described(file, content) for file, content in self.repos[name].items()]
        answer: object = {"id": name, "modelId": name, "sha": REVISION, "siblings": described}
        if "/tree/" in path:
            answer = [
                {"type": "file", "path": one["rfilename"], "oid": one["blobId"], "size": one["size"]}
                | ({"lfs": {**one["lfs"], "oid": one["lfs"]["sha256"]}} if "lfs" in one else {})
                for one in described
            ]
        data = json.dumps(answer).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _described(self, file: str, content: bytes) -> dict[str, object]:
        nbytes = self.listed.get(file, len(content))
        entry: dict[str, object] = {"rfilename": file, "size": nbytes, "blobId": _sha1(content)}
        if len(content) >= _LARGE_BYTES:
            entry["lfs"] = {"sha256": _sha256(content), "size": nbytes, "pointerSize": 134}
        return entry

    def _stored(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        address, _, rest = path.removeprefix("/store/").partition("/")
        if int(address) != len(self.cuts):
            self._refuse(handler, 403, "")
            return
        self._file(handler, "/" + rest, body=True)

    def _file(self, handler: BaseHTTPRequestHandler, path: str, *, body: bool) -> None:
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        file = rest.partition("/")[2]
        content = self.repos.get(repo, {}).get(file)
        if content is None:
            self._refuse(handler, 404, "EntryNotFound")
            return
        is_large = len(content) >= _LARGE_BYTES
        etag = (_sha256 if is_large else _sha1)(content)
        if self.store and is_large and not body:
            handler.send_response(302)
            handler.send_header("X-Repo-Commit", REVISION)
            handler.send_header("X-Linked-ETag", f'"{etag}"')
            handler.send_header("X-Linked-Size", str(len(content)))
            handler.send_header(
                "Location", f"http://localhost:{self._server.server_address[1]}/store/{len(self.cuts)}{path}"
            )
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        data, start = self.sent.get(file, content), 0
        asked = None if self.passes_over_ranges else handler.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            start, data = int(first), data[: int(last) + 1] if last else data
        handler.send_response(206 if asked else 200)
        handler.send_header("X-Repo-Commit", REVISION)
        handler.send_header("ETag", f'"{etag}"')
        handler.send_header("Accept-Ranges", "bytes")
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        if not body:
            return
        if self.cuts and is_large:
            handler.wfile.write(data[start : start + self.cuts.pop(0)])
            handler.wfile.flush()
            handler.close_connection = True
            handler.connection.close()
            return
        self._send(handler, data[start:])

    def _send(self, handler: BaseHTTPRequestHandler, data: bytes) -> None:
        if self.bytes_per_s is None:
            handler.wfile.write(data)
            return
        piece_bytes = max(1, int(self.bytes_per_s * _PIECE_S))
        for start in range(0, len(data), piece_bytes):
            with self._pace:  # of which each piece takes its share, whoever gets it
                piece = data[start : start + piece_bytes]
                self._due = max(self._due, time.monotonic() - _BURST_S) + len(piece) / self.bytes_per_s
                wait_s = self._due - time.monotonic()
            if wait_s > 0:
                threading.Event().wait(wait_s)
            handler.wfile.write(piece)
            self.last_sent = time.monotonic()

    @staticmethod
    def _refuse(handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
        handler.send_response(status)
        handler.send_header("X-Error-Code", code)
        handler.send_header("X-Error-Message", code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
