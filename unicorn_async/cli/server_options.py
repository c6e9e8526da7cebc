"""Where a server listens, and who may ask: what of a command line counts before anything of the server is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.cli.log_format import add_log_options
from unicorn_async.cli.options import count, port_number, seconds
from unicorn_async.cli.server_limits import add_limit_options

if TYPE_CHECKING:
    import argparse

API_KEY_VARIABLE = "UNICORN_API_KEY"


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add where to listen, and who may ask."""
    add_log_options(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    group.add_argument("--port", type=port_number, default=8000, help="0 takes any free one (default 8000)")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"clients must send it; others on this machine can see it here: {API_KEY_VARIABLE} or a file hides it",
    )
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that clients must send, one a line: NAME KEY [use] [manage] [metrics] [max_requests=N]",
    )
    group.add_argument(
        "--share-prefixes",
        action="store_true",
        help="what is computed of one key's prompts is there for other keys, too: times then tell what others asked",
    )
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="further name that browsers may use"
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of this origin may use the server, e.g. https://chat.example; with keys * allows those of all",
    )
    group.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="serve https and wss with this certificate and its chain, as PEM"
    )
    group.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="the key of --tls-cert, as PEM, without a passphrase"
    )
    group.add_argument(
        "--models-dir",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="clients may load the models and adapters below this folder; may be given several times",
    )
    group.add_argument(
        "--generation-config",
        choices=("auto", "none"),
        default="auto",
        help="for sampling parameters that a request leaves out: what the model's files recommend (auto), or greedy",
    )
    group.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep finished responses in this SQLite database, too, so that they are there after a restart",
    )
    group.add_argument(
        "--max-restarts",
        type=count,
        metavar="N",
        help="end the server when its engine fails after N restarts in a row (default: it is opened again for ever)",
    )
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send OpenTelemetry's spans to this collector, e.g. http://127.0.0.1:4318/v1/traces",
    )
    group.add_argument(
        "--drain",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long answers under way go on at SIGTERM; others are refused (default 0: they end at once)",
    )
    group.add_argument("--keep-model", action="store_true", help="clients can't load, unload or switch models")
    add_limit_options(parser)
