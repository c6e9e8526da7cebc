"""Tools, and which of them an answer may or has to call."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; `parameters` is a JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolMode(Enum):
    """Whether an answer calls tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request that an answer may call, with those that it is told of beside them."""

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.AUTO
    names: frozenset[str] | None = None  # that may be called; None = all
    parallel: bool = True  # more than one call in an answer

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.mode is ToolMode.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.names is None or tool.name in self.names)

    @property
    def is_guided(self) -> bool:
        """Whether calls follow a grammar: where there has to be one, or a tool is strict."""
        return self.mode is ToolMode.REQUIRED or any(tool.strict for tool in self.callable)
