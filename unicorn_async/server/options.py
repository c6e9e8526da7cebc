"""How a server behaves, frozen when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.keys import ApiKey, check_keys, with_own
from unicorn_async.server.origin import ANY, parse_origin

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.server.tls import FileContext


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
    "max_input_bytes",
    "max_unread_bytes",
    "max_all_unread_bytes",
    "max_client_connections",
    "max_client_requests",
    "max_client_input_bytes",
    "max_all_input_bytes",
    "max_client_background",
)
_TIMES = (
    "header_timeout_s",
    "idle_timeout_s",
    "queue_timeout_s",
    "send_timeout_s",
    "receive_timeout_s",
    "keepalive_s",
    "shutdown_timeout_s",
    "keep_events_s",
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits, deadlines and defaults; sizes in bytes, times in seconds."""

    # Good for everything; without any key whoever reaches the port may ask.
    api_key: str | None = field(default=None, repr=False)
    api_keys: tuple[ApiKey, ...] = ()  # further ones, each with its own rights
    api_key_file: Path | None = None  # that these are of, and are read from again at SIGHUP
    share_prefixes: bool = False  # among clients with different keys: times then tell what others have asked
    behind_proxy: bool = False  # then no address is this machine's own, and nobody tells what a client has not taken
    allowed_hosts: tuple[str, ...] = ()  # further names by which browsers may reach this server
    cors_origins: tuple[str, ...] = ()  # of other sites' pages that may use it; "*", of all, where there are keys
    default_sampling: SamplingParams = field(default_factory=SamplingParams)  # for what a request leaves out
    recommended_sampling: bool = True  # the model's own, in place of these, for what a request leaves out
    default_max_tokens: int | None = None  # None = as many as the context has room for
    max_message_bytes: int = 4 << 20  # one websocket message or HTTP body
    max_connections: int = 1024  # with a request under way, or a websocket; /health and /ready are answered beside them
    max_channels: int = 32  # channels of a connection with something to do
    max_queued: int = 16  # requests that wait in one channel
    max_input_bytes: int = 64 << 20  # of the requests that wait or are answered, a websocket
    max_unread_bytes: int = 64 << 10  # of a connection, that the client has not taken; what comes after it waits
    max_all_unread_bytes: int = 256 << 20  # of all connections that have more than that; the oldest of these goes
    max_client_connections: int = 256
    max_client_requests: int = 128  # under way, those that wait for the model among them
    max_client_input_bytes: int = 128 << 20  # of its requests that wait or are answered
    max_all_input_bytes: int = 1 << 30  # of all clients, likewise
    max_client_background: int = 64  # of the `max_background`
    queue_timeout_s: float = 600.0  # in which a request's model has to be open, and then a place free beside others
    header_timeout_s: float = (
        15.0  # in which a request's head has to come, from its first byte or the connection's begin
    )
    idle_timeout_s: float = 75.0  # an HTTP connection without a request is closed
    send_timeout_s: float = 30.0  # a client that takes nothing for so long is cut off
    receive_timeout_s: float = 30.0  # an HTTP body, or the key in a websocket's first frame, has to come in this time
    keepalive_s: float = 5.0  # between signs of life while no token has come
    shutdown_timeout_s: float = 1.0  # for clients to take the ends of their answers, before they are cut off
    drain_s: float = 0.0  # for answers under way to end by themselves, at SIGTERM
    response_names: str = "resp_"  # what the names of responses begin with
    max_stored: int = 1024  # responses kept for previous_response_id
    max_stored_chars: int = 64 << 20
    store_file: Path | None = None  # a database for these beside; None = they go with the process
    max_stored_on_disk: int = 100_000
    max_background: int = 256  # answers under way that need no listener
    max_event_chars: int = 8 << 20  # of the events of one of them; the oldest go
    max_kept_event_chars: int = 64 << 20  # of all that are under way, and of all that have ended
    keep_events_s: float = 600.0  # from an answer's end
    otlp_endpoint: str | None = None  # a collector of OpenTelemetry's spans; None = there are none
    tls: FileContext | None = None  # None = connections are not encrypted
    web_dir: Path | None = None  # the page; None = the one that came with the package

    def __post_init__(self) -> None:
        check_keys(self.keys)
        self._check_cors()
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

    def _check_cors(self) -> None:
        object.__setattr__(self, "cors_origins", tuple(map(parse_origin, self.cors_origins)))
        if ANY in self.cors_origins and not self.keys:
            raise ConfigError("cors origin *: any site's page could use this server; that needs an API key")

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys; none = whoever reaches the port may ask."""
        return with_own(self.api_key, self.api_keys)


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
