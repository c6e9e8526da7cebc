"""What an answer has to look like: grammars, as a request asks for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_GRAMMAR_CHARS = 1 << 17
JSON_WHITE_SPACE = r"(?: |\n {0,32})?"  # between tokens of JSON: a model that prints nothing else comes to an end


class GrammarKind(Enum):
    """What a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer has to look like, from its first token on; made by one of the class methods.

    `source` is a JSON schema as JSON, a regular expression or grammar as it is, or a JSON array of the texts to choose
    from. Of a JSON schema that is `strict` all keywords have to be known; else the unknown ones are passed over. A
    grammar says where an answer may end: it ends with an end token there, or is cut off by `max_tokens` before.

    Raises:
        GrammarError: it is not well-formed, or has more than 131,072 characters.
    """

    kind: GrammarKind
    source: str
    strict: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.kind, GrammarKind):
            raise GrammarError(f"kind: expected a GrammarKind, got {self.kind!r}")
        if not isinstance(self.source, str) or not self.source:
            raise GrammarError(f"expected a text of at least one character, got {self.source!r}")
        if len(self.source) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"expected at most {MAX_GRAMMAR_CHARS} characters, got {len(self.source)}")

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | bool | str, *, strict: bool = True) -> Grammar:
        """JSON that fits a schema, which is given as an object or as JSON. White space between tokens is limited."""
        if not isinstance(schema, str):
            try:
                schema = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as exc:
                raise GrammarError(f"the schema is not JSON: {exc}") from exc
        return cls(GrammarKind.JSON_SCHEMA, schema, strict)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls(GrammarKind.JSON_SCHEMA, '{"type":"object"}')

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A text that a regular expression matches as a whole; Rust's syntax, without look-around."""
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """A text of a context-free grammar in Lark's syntax, as llguidance takes it; its first rule is `start`."""
        return cls(GrammarKind.LARK, grammar)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of some texts, none of them empty."""
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise GrammarError(f"expected texts to choose from, none of them empty, got {texts!r}"[:200])
        return cls(GrammarKind.CHOICE, json.dumps(list(texts), ensure_ascii=False))
