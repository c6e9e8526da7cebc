"""Origins of pages, as browsers write them (RFC 6454, section 6.1)."""

from __future__ import annotations

import re

from unicorn_async.errors import ConfigError

ANY = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]\\*]+)(:[0-9]{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def parse_origin(text: str) -> str:
    """Return an origin as browsers write it, or `*`.

    Raises:
        ConfigError: it is none.
    """
    origin = text.lower()
    if origin != ANY and not _ORIGIN.fullmatch(origin):
        raise ConfigError(f"cors origin: expected SCHEME://HOST[:PORT] without a path, or *, got {text!r}")
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], "/"))
