"""The chat page: the built files under strict headers, as they are or compressed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
HASHED = re.compile(r".+-[0-9a-f]{12}\.[a-z]+")  # another content has another name
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept-encoding",
}


def page_routes(directory: Path) -> list[Route]:
    """Return the routes of the page, its files read once: every file of a type that a page is made of.

    Raises:
        ConfigError: the page is missing, or a file can't be read.
    """
    try:
        names = sorted(file.name for file in directory.iterdir() if file.suffix in MEDIA_TYPES)
    except OSError as exc:
        raise ConfigError(f"{directory}: {exc.strerror}; the page is part of the installation") from exc
    if INDEX not in names:
        raise ConfigError(f"{directory / INDEX}: not found; the page is part of the installation")
    return [_route(directory / name) for name in names]


def _route(file: Path) -> Route:
    compressed_file = file.with_name(f"{file.name}.gz")
    try:
        content = file.read_bytes()
        compressed = compressed_file.read_bytes() if compressed_file.exists() else None
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}; the page is part of the installation") from exc
    is_hashed = HASHED.fullmatch(file.name) is not None
    headers = {**HEADERS, "cache-control": "max-age=31536000, immutable" if is_hashed else "no-cache"}
    media_type = MEDIA_TYPES[file.suffix]

    async def respond(request: Request) -> Response:
        if compressed is not None and _takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(compressed, media_type=media_type, headers={**headers, "content-encoding": "gzip"})
        return Response(content, media_type=media_type, headers=headers)

    return Route("/" if file.name == INDEX else f"/{file.name}", respond, methods=["GET"])


def _takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding names gzip without refusing it by a weight of 0 (RFC 9110, section 12.5.3)."""
    for entry in accepted.split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip().lower() == "gzip":
            return re.fullmatch(r"\s*q=0(\.0*)?\s*", weight) is None
    return False
