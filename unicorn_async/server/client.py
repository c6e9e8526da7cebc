"""Who asks: what clients are told apart by, and what each of them may do."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from unicorn_async.server.keys import ALL_RIGHTS, Right

_NETWORK_BITS = 64  # of an IPv6 address; whoever has one has all others of its network, too


@dataclass(frozen=True, slots=True)
class Client:
    """Everybody with the same key, or without keys everybody at the same address."""

    name: str
    rights: frozenset[Right] = ALL_RIGHTS
    max_requests: int | None = None  # under way at a time; None = as many as any client
    key_number: int = 0  # of the key that it came with, 0 without; one that is replaced has another
    cache_salt: str = ""  # what was computed of a prompt is there for those with the same one

    def sees(self, owner: str) -> bool:
        """Whether what a client of this name has stored is there for this one: without keys it is.

        What is nobody's, of a store older than owners, is everybody's.
        """
        return not self.key_number or owner in ("", self.name)


LOCAL = Client("local")


def client_at(host: str | None) -> Client:
    """Return who asks from an address without a key: beyond this machine's own, models are used and not managed."""
    try:
        address = None if host is None else ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        address = None
    if address is None:
        return LOCAL  # a socket in the file system
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return Client(str(address))
    if isinstance(address, ipaddress.IPv6Address):
        network = ipaddress.IPv6Network((address, _NETWORK_BITS), strict=False)
        return Client(str(network), frozenset((Right.USE,)))
    return Client(str(address), frozenset((Right.USE,)))
