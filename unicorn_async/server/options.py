"""How a server behaves, frozen when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.config import SamplingParams
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


_COUNTS = (
    "max_message_bytes",
    "max_connections",
    "max_channels",
    "max_queued",
    "max_stored",
    "max_stored_on_disk",
    "max_background",
    "max_event_chars",
    "max_kept_event_chars",
)
_TIMES = ("send_timeout_s", "receive_timeout_s", "keepalive_s", "shutdown_timeout_s", "keep_events_s")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits, deadlines and defaults; sizes in bytes, times in seconds."""

    api_key: str | None = None  # None = anybody who reaches the port may ask
    allowed_hosts: tuple[str, ...] = ()  # further names by which browsers may reach this server
    default_sampling: SamplingParams = field(default_factory=SamplingParams)  # for what a request leaves out
    recommended_sampling: bool = True  # the model's own, in place of these, for what a request leaves out
    default_max_tokens: int | None = None  # None = as many as the context has room for
    max_message_bytes: int = 4 << 20  # one websocket message or HTTP body
    max_connections: int = 1024
    max_channels: int = 32  # channels of a connection with something to do
    max_queued: int = 16  # requests that wait in one channel
    send_timeout_s: float = 30.0  # a client that takes nothing for so long is cut off
    receive_timeout_s: float = 30.0  # an HTTP body, or the key in a websocket's first frame, has to come in this time
    keepalive_s: float = 5.0  # between signs of life while no token has come
    shutdown_timeout_s: float = 1.0  # for clients to take the ends of their answers, before they are cut off
    drain_s: float = 0.0  # for answers under way to end by themselves, at SIGTERM
    max_stored: int = 1024  # responses kept for previous_response_id
    max_stored_chars: int = 64 << 20
    store_file: Path | None = None  # a database for these beside; None = they go with the process
    max_stored_on_disk: int = 100_000
    max_background: int = 256  # answers under way that need no listener
    max_event_chars: int = 8 << 20  # of the events of one of them; the oldest go
    max_kept_event_chars: int = 64 << 20  # of all that are under way, and of all that have ended
    keep_events_s: float = 600.0  # from an answer's end
    otlp_endpoint: str | None = None  # a collector of OpenTelemetry's spans; None = there are none
    web_dir: Path | None = None  # the page; None = the one that came with the package

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("api_key: expected a key, got an empty one")
        if self.otlp_endpoint is not None:
            _check_endpoint(self.otlp_endpoint)
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.drain_s >= 0:
            raise ConfigError(f"drain_s: expected at least 0, got {self.drain_s}")
        for name in _TIMES:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}")


def _check_endpoint(address: str) -> None:
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"otlp_endpoint: expected an http:// or https:// address, got {address!r}")
    from importlib.util import find_spec

    for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = find_spec(package) is not None
        except ModuleNotFoundError:  # not even what it is a part of
            found = False
        if not found:
            raise ConfigError(f"otlp_endpoint: {package} is missing; `pip install unicorn-async[otel]` has it")
