"""Who may ask: the API key, and the guard against other sites' pages."""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unicorn_async.server.protocol.errors import ApiError

# Names that nobody can have a public name server answer for: RFC 6761, RFC 6762, ICANN's resolution 2024.07.29.06 and
# RFC 8375.
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.server.options import ServerOptions


class Access:
    """Decides by a request's headers alone (names in lower case)."""

    def __init__(self, options: ServerOptions) -> None:
        self._key = options.api_key.encode() if options.api_key is not None else None
        self._allowed_hosts = frozenset(host.lower() for host in options.allowed_hosts)

    def check(self, headers: Mapping[str, str]) -> None:
        """Let an HTTP request pass.

        Raises:
            ApiError: 401 for a missing or wrong key, 403 for another site's page or a name that may be one's.
        """
        if self._key is not None:
            self.check_key(_bearer(headers))
            return
        self.check_host(headers)
        self._check_origin(headers)

    def check_upgrade(self, headers: Mapping[str, str]) -> bool:
        """Let a websocket's handshake pass; return whether the first frame still has to bring the key.

        A browser can't set headers on a websocket, and always sends its origin: it alone may bring the key later.
        """
        if self._key is not None and "origin" in headers and "authorization" not in headers:
            return True
        self.check(headers)
        return False

    def check_key(self, key: str | None) -> None:
        """Raise unless the key is the server's; without one configured any key is good."""
        if self._key is None:
            return
        if key is None:
            raise ApiError("this server wants an API key", status=401, code="missing_api_key")
        if not hmac.compare_digest(key.encode("utf-8", "replace"), self._key):
            raise ApiError("this API key is not the server's", status=401, code="invalid_api_key")

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise if the request is for a host name that another site's page may have; a server with a key takes any.

        Browsers send no origin where a page reads from its own host, so the name alone tells such pages apart.
        """
        host = headers.get("host")
        if self._key is None and host is not None and not self._is_own_name(host):
            message = f"host name {host[:200]!r} is not allowed; allow it with --allow-host, or set an API key"
            raise ApiError(message, status=403, code="foreign_host")

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        if origin is None:
            return
        host = headers.get("host", "")
        if not host or origin.partition("://")[2].lower() != host.lower():
            raise ApiError(f"origin {origin[:200]!r} is not this server's page", status=403, code="foreign_origin")

    def _is_own_name(self, host: str) -> bool:
        """Whether a public name server can't have pointed this name here: another site's owner could, with a DNS
        answer that changes, have his page and this server share an origin."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self._allowed_hosts or "." not in name.strip(".") or name.endswith(_PRIVATE_ENDINGS):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None
