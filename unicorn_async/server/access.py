"""Who may ask: the API key, and the guard against other sites' pages."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unicorn_async.server.client import Client, client_at
from unicorn_async.server.keys import Right
from unicorn_async.server.protocol.errors import ApiError

# Names that nobody can have a public name server answer for: RFC 6761, RFC 6762, ICANN's resolution 2024.07.29.06 and
# RFC 8375.
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.server.keys import ApiKey
    from unicorn_async.server.options import ServerOptions


class Access:
    """Decides by a request's headers (names in lower case) and by the address that it comes from."""

    def __init__(self, options: ServerOptions) -> None:
        self._shares = options.share_prefixes
        self._keys: list[tuple[tuple[bytes, ...], Client]] = []
        self._num_keys = 0  # that there were
        self.renew(options.keys)
        self._behind_proxy = options.behind_proxy
        self._cors_origins = frozenset(options.cors_origins)
        self._is_encrypted = options.tls is not None
        self._allowed_hosts = frozenset(host.lower() for host in options.allowed_hosts)

    def renew(self, keys: Sequence[ApiKey]) -> None:
        """Have these keys count in place of those before."""
        known = {(spellings, client.name): client.key_number for spellings, client in self._keys}
        renewed: list[tuple[tuple[bytes, ...], Client]] = []
        for key in keys:
            spellings, number = _spellings(key), self._num_keys + 1
            number = known.get((spellings, key.name), number)
            self._num_keys = max(self._num_keys, number)
            # Who has another key under the same name is not told by it what the one before has asked.
            salt = "" if self._shares else f"key {key.name} {hashlib.sha256(key.key.encode()).hexdigest()}"
            renewed.append((spellings, Client(key.name, key.rights, key.max_requests, number, salt)))
        self._keys = renewed

    @property
    def needs_key(self) -> bool:
        """Whether only those who have a key may ask."""
        return bool(self._keys)

    def check(self, headers: Mapping[str, str], host: str | None = None, right: Right | None = Right.USE) -> Client:
        """Let an HTTP request pass, and return whose it is; `right` is None where somebody else looks at that.

        Raises:
            ApiError: 401 for a missing or wrong key, 403 for another site's page or a name that may be one's, and for
                what the client has no right to.
        """
        client = self._client(headers, host)
        if right is not None and right not in client.rights:
            if self._keys:
                message = f"the API key of {client.name!r} is not good for this: it has no right to {right.value}"
                raise ApiError(message, status=403, code="no_right")
            whence = (
                f"through a proxy ({client.name})" if self._behind_proxy else f"from another machine ({client.name})"
            )
            who = "from another site's page" if self._is_listed(headers) else whence
            message = f"{who} this needs an API key, and the server has none"
            raise ApiError(message, status=403, code="key_needed")
        return client

    def check_upgrade(self, headers: Mapping[str, str], host: str | None = None) -> Client | None:
        """Let a websocket's handshake pass; return whose it is, None if the first frame still has to bring the key.

        A browser can't set headers on a websocket, and always sends its origin: it alone may bring the key later.
        """
        if self._keys and "origin" in headers and "authorization" not in headers:
            return None
        return self.check(headers, host)

    def check_key(self, key: str | None) -> Client:
        """Return whose key it is; raise if it is nobody's, or not good for questions."""
        client = self._owner(None if key is None else key.encode("utf-8", "replace"))
        if Right.USE not in client.rights:
            raise _no_use(client)
        return client

    def still(self, client: Client) -> Client:
        """Return who a client that was let pass is by now, with the rights that its key has by now.

        Raises:
            ApiError: 401, its key is none of the server's any more; 403, it is not good for questions any more.
        """
        if not self._keys:
            return client
        found = next((one for _, one in self._keys if one.key_number == client.key_number), None)
        if found is None:
            message = "the API key of this connection is not one of the server's any more"
            raise ApiError(message, status=401, code="invalid_api_key")
        if Right.USE not in found.rights:
            raise _no_use(found)
        return found

    def caller(self, headers: Mapping[str, str], host: str | None) -> Client:
        """Return whose request it seems to be, before it is let pass: the address counts where there is no good key."""
        try:
            return self._client(headers, host)
        except ApiError:
            return self._at(host)

    def _client(self, headers: Mapping[str, str], host: str | None) -> Client:
        if self._keys:
            return self._owner(_bearer(headers))
        self.check_host(headers)
        client = self._at(host)
        if self._is_listed(headers):
            return replace(client, rights=client.rights & {Right.USE})
        self._check_origin(headers)
        return client

    def _at(self, host: str | None) -> Client:
        client = client_at(host)
        return replace(client, rights=frozenset((Right.USE,))) if self._behind_proxy else client

    def _owner(self, key: bytes | None) -> Client:
        if key is None:
            raise ApiError("this server wants an API key", status=401, code="missing_api_key")
        found: Client | None = None
        for spellings, client in self._keys:  # all of them, whichever it is: the time tells nothing
            for spelling in spellings:
                if hmac.compare_digest(key, spelling):
                    found = client
        if found is None:
            raise ApiError("this API key is not one of the server's", status=401, code="invalid_api_key")
        return found

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise if the request is for a host name that another site's page may have; a server with a key takes any.

        Browsers send no origin where a page reads from its own host, so the name alone tells such pages apart.
        """
        host = headers.get("host")
        if not self._keys and host is not None and not self._is_own_name(host):
            message = f"host name {host[:200]!r} is not allowed; allow it with --allow-host, or set an API key"
            raise ApiError(message, status=403, code="foreign_host")

    def _is_listed(self, headers: Mapping[str, str]) -> bool:
        """Whether another site's page asks that may use this server: using is all that it may."""
        return headers.get("origin") in self._cors_origins

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        if origin is None:
            return
        host = headers.get("host", "")
        scheme, _, name = origin.lower().partition("://")
        # Behind a proxy that encrypts a page's scheme may be another one; where this server does, it may not.
        if not host or name != host.lower() or (self._is_encrypted and scheme != "https"):
            raise ApiError(
                f"origin {origin[:200]!r} is not this server's page; --cors-origin lets it",
                status=403,
                code="foreign_origin",
            )

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


def _bearer(headers: Mapping[str, str]) -> bytes | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" and key.strip() else None


def _spellings(key: ApiKey) -> tuple[bytes, ...]:
    """The bytes that stand for a key in a header: clients write what is not ASCII in one of two encodings."""
    spellings = [key.key.encode()]
    with contextlib.suppress(UnicodeEncodeError):
        spellings.append(key.key.encode("latin-1"))
    return tuple(dict.fromkeys(spellings))


def _no_use(client: Client) -> ApiError:
    message = f"the API key of {client.name!r} is not good for this: it has no right to use"
    return ApiError(message, status=403, code="no_right")
