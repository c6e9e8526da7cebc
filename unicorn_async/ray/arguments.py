"""What `serve run` and a Serve configuration may say of the application."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NoReturn, Self

from unicorn_async.cli.options import add_engine_options, engine_config
from unicorn_async.cli.server_options import API_KEY_VARIABLE, add_server_options
from unicorn_async.cli.serving import server_options
from unicorn_async.cli.settings import add_settings_options, override, parse_settings
from unicorn_async.config import EngineConfig
from unicorn_async.errors import ConfigError
from unicorn_async.ray.affinity import BEGINNING_CHARS
from unicorn_async.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNTS = (
    "min_replicas",
    "max_replicas",
    "max_ongoing",
    "target_ongoing",
    "max_waiting",
    "gateways",
    "beginning_chars",
)
# Options of `unicorn serve` that have no meaning here: Ray Serve listens, logs, drains and restarts, and a replica
# keeps its model and its responses to itself.
_OF_ONE_SERVER = (
    "host",
    "port",
    "log_level",
    "log_format",
    "drain",
    "max_restarts",
    "models_dir",
    "keep_model",
    "store",
    "header_timeout_s",
    "idle_timeout_s",
    "max_unread_bytes",
    "max_all_unread_bytes",
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The application's arguments; `config` and `options` come from those that `unicorn serve` has, too."""

    model: str  # a directory, a file or a name, the same on each machine
    min_replicas: int = 1
    max_replicas: int = 1
    max_ongoing: int = 64  # answers under way at a replica; further ones go to the next
    target_ongoing: int = 32  # answers under way a replica, by which their number is chosen
    max_waiting: int = 256  # requests of a gateway that wait while all are full; further ones are refused
    num_gpus: float = 1.0  # that Ray counts for a replica; 0 where Ray does not know the GPU
    num_cpus: float = 1.0
    gateways: int = 1
    gateway_cpus: float = 1.0
    beginning_chars: int = BEGINNING_CHARS  # of a prompt, by which it has its replica
    allow_software: bool = False
    config: EngineConfig = field(default_factory=EngineConfig)
    options: ServerOptions = field(default_factory=lambda: ServerOptions(behind_proxy=True))

    @classmethod
    def parse(cls, given: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Self:
        """Return the arguments; on `serve run`'s command line all of them are texts.

        Options of `unicorn serve` are taken by their names, else from the environment, else from the TOML file
        `config`.

        Raises:
            ConfigError: there is no model, an unknown name or a value that can't be.
        """
        own = {item.name for item in fields(cls)} - {"config", "options"}
        if not given.get("model"):
            raise ConfigError("give the model to serve: model=NAME")
        values = {name: _value(name, value) for name, value in given.items() if name in own}
        others = {name: value for name, value in given.items() if name not in own}
        config, options = _settings(others, os.environ if environ is None else environ)
        arguments = cls(config=config, options=options, **values)  # type: ignore[arg-type]
        least, most = arguments.min_replicas, arguments.max_replicas
        if least > most:
            raise ConfigError(f"min_replicas {least} is more than max_replicas {most}")
        return replace(arguments, config=replace(config, allow_software=arguments.allow_software))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _settings(given: Mapping[str, object], environ: Mapping[str, str]) -> tuple[EngineConfig, ServerOptions]:
    if given.keys() & {"api_key", "api-key"}:
        raise ConfigError(f"api_key: Ray shows arguments to others; give api_key_file, or {API_KEY_VARIABLE}")
    parser = _Parser(add_help=False)
    add_settings_options(parser)
    add_server_options(parser)
    add_engine_options(parser)
    for action in [action for action in parser._actions if action.dest in _OF_ONE_SERVER]:
        parser._remove_action(action)
    parser.set_defaults(store=None, drain=0.0)
    file = given.get("config")
    options = parse_settings(parser, [] if file is None else [f"--config={file}"], environ)
    override(parser, options, {name: value for name, value in given.items() if name != "config"})
    return engine_config(options), replace(server_options(options), behind_proxy=True)


def _value(name: str, value: object) -> object:
    if name in _COUNTS:
        return _number(name, value, int, least=1)
    if name in ("num_gpus", "num_cpus", "gateway_cpus"):
        return _number(name, value, float, least=0)
    if name == "allow_software":
        if str(value).lower() not in ("true", "false"):
            raise ConfigError(f"{name}: expected true or false, got {value!r}")
        return str(value).lower() == "true"
    return str(value)


def _number(name: str, value: object, kind: type[int] | type[float], *, least: int) -> int | float:
    try:
        number = kind(str(value))
    except ValueError as exc:
        raise ConfigError(f"{name}: expected a number, got {value!r}") from exc
    if not least <= number < 1 << 20:
        raise ConfigError(f"{name}: expected {least} or more, got {number}")
    return number
