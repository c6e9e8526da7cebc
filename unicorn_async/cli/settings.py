"""Every option of a server as a flag, an environment variable or a line of a TOML file, in this order."""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import ConfigError
from unicorn_async.lora_spec import LoraSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PREFIX = "UNICORN_"
_SECRET = frozenset({"api-key"})
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
MAX_FILE_BYTES = 1 << 20
_OTHERS = (f"{PREFIX}CONFIG", f"{PREFIX}NPU_BUILD")  # variables that are no options
_DEFAULT = re.compile(r"\(default:? ([^()]*)")
_VALUE = re.compile(r"[\w.]+")
_NEAR = 0.75  # of two names' letters that are alike, in their order


class Setting(NamedTuple):
    """An option's value, where it came from, and what goes for it where it is None, if anything."""

    value: object
    origin: str
    unset: str = ""


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Add where further options are read from."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"TOML file with options by their names, e.g. port = 8001; {PREFIX}CONFIG does the same, {PREFIX}PORT sets"
        " the port, and flags go before both",
    )
    parser.add_argument("--print-config", action="store_true", help="print the options as a TOML file, and end")


def parse_settings(
    parser: argparse.ArgumentParser, given: Sequence[str], environ: Mapping[str, str]
) -> argparse.Namespace:
    """Return the options; with `print_config` its value is the text to print, else None.

    A variable of the environment whose name is nearly that of an option ends the command as a wrong flag does.

    Raises:
        ConfigError: an option of the file is unknown, one of it or of the environment is wrong, or the file can't be
            read.
    """
    actions = {name: action for action in parser._actions if (name := _name(action)) is not None}
    mistyped = _mistyped(environ, actions)
    if mistyped is not None:
        parser.error("{}: there is no such option; did you mean {}?".format(*mistyped))
    defaults = {name: action.default for name, action in actions.items()}
    for action in actions.values():
        action.default = argparse.SUPPRESS  # what is there then was given
    options = parser.parse_args(given)
    file = options.config or (Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None)
    lines = {} if file is None else _read(file)
    for key in lines:
        if key not in actions:
            raise ConfigError(f"{file}: {key}: there is no such option")
    settings: dict[str, Setting] = {}
    for name, action in actions.items():
        variable = _variable(name)
        if hasattr(options, action.dest):
            settings[name] = Setting(getattr(options, action.dest), "command line")
        elif text := environ.get(variable):
            settings[name] = Setting(_from_text(action, text, variable), variable)
        elif name in lines:
            settings[name] = Setting(_from_toml(action, lines[name], f"{file}: {name}"), str(file))
        else:
            settings[name] = Setting(defaults[name], "default", _told_default(action))
        setattr(options, action.dest, settings[name].value)
    options.print_config = settings_text(settings) if options.print_config else None
    return options


def override(parser: argparse.ArgumentParser, options: argparse.Namespace, given: Mapping[str, object]) -> None:
    """Set options by their names; texts mean what they do in the environment, other values what they do in a file.

    Raises:
        ConfigError: there is no such option, or its value can't be.
    """
    actions = {name: action for action in parser._actions if (name := _name(action)) is not None}
    for key, value in given.items():
        action = actions.get(key.replace("_", "-"))
        if action is None:
            raise ConfigError(f"{key}: there is no such option")
        read = _from_text(action, value, key) if isinstance(value, str) else _from_toml(action, value, key)
        setattr(options, action.dest, read)


def settings_text(settings: Mapping[str, Setting]) -> str:
    """Return options as a TOML file that sets them, but for secrets."""
    lines: list[str] = []
    for name, (value, origin, unset) in settings.items():
        if value is None:
            lines.append(_unset_text(name, unset))
        elif name in _SECRET:
            lines.append(f"# {name} is set, and not shown  # {origin}")
        else:
            lines.append(f"{name} = {_toml(value)}  # {origin}")
    return "\n".join(lines)


def _told_default(action: argparse.Action) -> str:
    """What an option's help says of its default, which for many is made up later."""
    found = _DEFAULT.search(action.help or "")
    return "" if found is None else found[1]


def _unset_text(name: str, unset: str) -> str:
    """Return the line of an option without a value: a value that goes for it, or in words what does."""
    value, *words = re.split("[:;] ", unset, maxsplit=1)
    if not _VALUE.fullmatch(value):
        return f"# {name} is not set" + (f": {unset}" if unset else "")
    shown = value if value[0].isdigit() else _toml(value)
    return ": ".join((f"# {name} = {shown}  # default", *words))


def _name(action: argparse.Action) -> str | None:
    """What an option is called, without dashes; None of one that is for the command line alone."""
    if isinstance(action, argparse._HelpAction) or action.dest in ("config", "print_config"):
        return None
    longest = max(action.option_strings, key=len, default=action.dest)
    return longest.removeprefix("--")


def _variable(name: str) -> str:
    return PREFIX + name.replace("-", "_").upper()


def _mistyped(environ: Mapping[str, str], options: Iterable[str]) -> tuple[str, str] | None:
    """Return a variable that is no option and nearly one, and that one.

    Others are left alone: a cluster tells its programs of a service of this name by such variables.
    """
    known = {*map(_variable, options), *_OTHERS}
    for name in sorted(environ.keys() - known):
        if name.startswith(PREFIX):
            suffixes = [other.removeprefix(PREFIX) for other in sorted(known)]
            found = difflib.get_close_matches(name.removeprefix(PREFIX), suffixes, n=1, cutoff=_NEAR)
            if found:
                return name, PREFIX + found[0]
    return None


def _read(file: Path) -> dict[str, object]:
    import tomllib

    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{file}: {file.stat().st_size} bytes, at most {MAX_FILE_BYTES} are allowed")
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}") from exc
    except ValueError as exc:
        raise ConfigError(f"{file}: not valid TOML: {exc}") from exc
    return {key.replace("_", "-"): value for key, value in found.items()}


def _from_text(action: argparse.Action, text: str, source: str) -> object:
    if action.nargs == 0:
        if text.lower() not in _FLAGS:
            raise ConfigError(f"{source}: expected true or false, got {text!r}")
        return _FLAGS[text.lower()]
    if isinstance(action, argparse._AppendAction):
        return [_converted(action, part, source) for part in text.split(",") if part]
    return _converted(action, text, source)


def _from_toml(action: argparse.Action, value: object, source: str) -> object:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"{source}: expected true or false, got {value!r}")
        return value
    if isinstance(action, argparse._AppendAction):
        items = value if isinstance(value, list) else [value]
        return [_converted(action, _text(item, source), source) for item in items]
    return _converted(action, _text(value, source), source)


def _text(value: object, source: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{source}: expected a string or a number, got {value!r}")
    return str(value)


def _converted(action: argparse.Action, text: str, source: str) -> object:
    """Return what the flag would make of a text."""
    try:
        value: object = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    if action.choices is not None and value not in action.choices:
        raise ConfigError(f"{source}: expected one of {', '.join(map(str, action.choices))}, got {text!r}")
    return value


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    import json

    text = f"{value.path}={value.weight:g}" if isinstance(value, LoraSpec) else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
