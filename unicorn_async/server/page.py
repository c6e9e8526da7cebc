"""The chat page: a few static files under strict headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/connection.js": ("connection.js", "text/javascript; charset=utf-8"),
    "/load.js": ("load.js", "text/javascript; charset=utf-8"),
    "/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/models.js": ("models.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes(directory: Path) -> list[Route]:
    """Return the routes of the page, its files read once.

    Raises:
        ConfigError: a file is missing or can't be read.
    """
    return [_route(path, directory / name, media_type) for path, (name, media_type) in FILES.items()]


def _route(path: str, file: Path, media_type: str) -> Route:
    try:
        content = file.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}; the page is part of the installation") from exc

    async def respond(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return Route(path, respond, methods=["GET"])
