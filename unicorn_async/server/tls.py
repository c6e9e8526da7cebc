"""TLS: the certificate that the server shows, and its key."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


logger = logging.getLogger(__name__)


class FileContext(ssl.SSLContext):
    """What a server's connections are encrypted by, with the files that it is of and how these were then."""

    files: tuple[Path, Path]
    stamps: tuple[object, ...]

    def renewed(self) -> FileContext:
        """Return what the files have now, itself where they are as they were.

        That they can't be used is logged, once until they change again; what was there goes on being used.
        """
        stamps = _stamps(*self.files)
        if stamps == self.stamps:
            return self
        self.stamps = stamps
        try:
            context = tls_context(*self.files)
        except ConfigError as exc:
            logger.error("the TLS certificate stays as it was: %s", exc)
            return self
        logger.info("the TLS certificate is renewed from %s", self.files[0])
        return context


def _stamps(*files: Path) -> tuple[object, ...]:
    found: list[object] = []
    for file in files:
        try:
            status = file.stat()
        except OSError as exc:
            found.append(exc.errno)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def tls_context(certificate: Path, key: Path) -> FileContext:
    """Return what a server's connections are encrypted by; both files are PEM, the first with the certificate's chain.

    Raises:
        ConfigError: a file can't be read or is no such, they don't belong together, or the key has a passphrase.
    """
    _check_readable(certificate, "certificate")
    _check_readable(key, "key")

    def refuse_passphrase() -> str:  # OpenSSL would ask for it at the terminal
        message = f"{key}: the TLS key has a passphrase; `openssl pkey -in {key} -out FILE` makes one without"
        raise ConfigError(message)

    context = FileContext(ssl.PROTOCOL_TLS_SERVER)
    context.files, context.stamps = (certificate, key), _stamps(certificate, key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=refuse_passphrase)
    except ssl.SSLError as exc:
        if exc.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            raise ConfigError(f"{key}: this TLS key does not belong to the certificate {certificate}") from exc
        reason = f"; OpenSSL says {exc.reason}" if exc.reason else ""
        raise ConfigError(f"{certificate} and {key}: not a TLS certificate and its key, as PEM{reason}") from exc
    return context


def _check_readable(file: Path, what: str) -> None:
    """Raise with the name of the file: OpenSSL does not tell which of them it is about."""
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as exc:
        raise ConfigError(f"{file}: the TLS {what} can't be read: {exc.strerror}") from exc
