"""Origins of pages, as browsers write them (RFC 6454, section 6.1, with the URL standard's hosts)."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

from unicorn_async.errors import ConfigError

ANY = "*"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([1-9][0-9]{0,4}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# Pages are not loaded from these, or browsers say `null` for them.
_SCHEMES_WITHOUT = frozenset({"about", "blob", "data", "file", "ftp", "javascript", "ws", "wss"})
_MAX_PORT = 0xFFFF
_MAX_LABEL, _MAX_NAME = 63, 253
_ZEROS = re.compile(r"\b0(?::0)+\b")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def parse_origin(text: str) -> str:
    """Return an origin as browsers write it, or `*`.

    Letters may be large, and the scheme's own port may be there, since people write both.

    Raises:
        ConfigError: it is none that a browser sends.
    """
    if text == ANY:
        return ANY
    found = _ORIGIN.fullmatch(text.lower()) if text.isascii() else None
    if found is None:
        raise _wrong(text, "without a path, or *, a name with other letters as xn--")
    scheme, host, port = found.groups()
    if scheme in _SCHEMES_WITHOUT:
        raise _wrong(text, f"pages have no origin of the scheme {scheme}")
    if port is not None and int(port) > _MAX_PORT:
        raise _wrong(text, f"with a port up to {_MAX_PORT}")
    _check_host(text, host)
    return f"{scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS.get(scheme)) else f":{port}")


def _check_host(text: str, host: str) -> None:
    if host.startswith("["):
        try:
            written = _written(IPv6Address(host[1:-1]))
        except ValueError:
            raise _wrong(text, "with an IPv6 address in brackets") from None
        if host != written:
            raise _wrong(text, f"browsers write this address as {written}")
        return
    name = host.removesuffix(".")
    labels = name.split(".")
    if len(name) > _MAX_NAME or not all(1 <= len(label) <= _MAX_LABEL for label in labels):
        raise _wrong(text, f"with a host name of at most {_MAX_NAME} characters, {_MAX_LABEL} between its dots")
    if _NUMBER.fullmatch(labels[-1]):  # browsers take it for an IPv4 address, and write that in full
        try:
            IPv4Address(host)
        except ValueError:
            raise _wrong(text, "with an IPv4 address of four decimal numbers") from None


def _written(address: IPv6Address) -> str:
    """An address as the URL standard writes it: Python has dots in some."""
    digits = address.packed.hex()
    groups = ":".join(f"{int(digits[start : start + 4], 16):x}" for start in range(0, len(digits), 4))
    gap = max(_ZEROS.finditer(groups), key=lambda found: len(found.group()), default=None)
    if gap is None:
        return f"[{groups}]"
    return f"[{groups[: gap.start()].removesuffix(':')}::{groups[gap.end() :].removeprefix(':')}]"


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"cors origin: expected SCHEME://HOST[:PORT] as browsers send it, {why}; got {text[:200]!r}")
