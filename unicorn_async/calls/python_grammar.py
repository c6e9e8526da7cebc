"""Grammar rules of calls that are written as Python does; values are JSON, which both languages read alike."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_grammar import Arguments
from unicorn_async.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.calls.tool import Tool

_KEY = re.compile(r"[\w.$-]{1,128}")
_MOST_EXTRA = 15  # arguments whose names the model chooses, beside the first


class PythonRules:
    """Rules of each tool's call, `one_…`; `json_rule` writes that of a JSON schema, which is strict or not."""

    def __init__(self, json_rule: Callable[[Mapping[str, object], bool], str]) -> None:
        self._json_rule = json_rule

    def shared(self) -> list[str]:
        """Return the rules that those of all tools use."""
        return ["key: /[A-Za-z_][A-Za-z0-9_]{0,63}/"]

    def of(self, tool: Tool, index: int) -> list[str]:
        """Return the rules of a tool's call.

        Raises:
            GrammarError: an argument's name can't be written so.
        """
        arguments = Arguments(tool)
        head = json.dumps(f"{tool.name}(")
        if arguments.extra is not None:
            value = self._json_rule(arguments.json(arguments.extra), tool.strict)
            more = f'(more_{index} (", " more_{index}){{0,{_MOST_EXTRA}}})?'
            return [f'one_{index}: {head} {more} ")"', f'more_{index}: key "=" any_{index}', f"any_{index}: {value}"]
        rules = [f'one_{index}: {head} first_{index}_0 ")"']
        for number, (name, schema, is_required) in enumerate(arguments.listed):
            if _KEY.fullmatch(name) is None:
                raise GrammarError(f"{tool.name}: {name!r} can't be an argument's name in the form that this model has")
            this, after = f"{index}_{number}", f"{index}_{number + 1}"
            rules.append(f"arg_{this}: {json.dumps(name + '=')} value_{this}")
            rules.append(f"value_{this}: {self._json_rule(arguments.json(schema), tool.strict)}")
            skips = "" if is_required else f" | first_{after}"
            rules.append(f"first_{this}: arg_{this} next_{after}{skips}")
            skips = "" if is_required else f" | next_{after}"
            rules.append(f'next_{this}: ", " arg_{this} next_{after}{skips}')
        last = f"{index}_{len(arguments.listed)}"
        return [*rules, f'first_{last}: ""', f'next_{last}: ""']
