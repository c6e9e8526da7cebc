"""Grammars compiled against a vocabulary, and where answers stand in them. The one module that imports llguidance."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from unicorn_async.errors import GrammarError
from unicorn_async.grammar import JSON_WHITE_SPACE, GrammarKind
from unicorn_async.guidance.forced_tokens import ForcedTokens
from unicorn_async.guidance.messages import Masks
from unicorn_async.guidance.strictness import check_strict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.grammar import Grammar
    from unicorn_async.guidance.vocabulary import Vocabulary

_FREE = '%llguidance {"no_forcing": true}\n'  # what must come next may come in any tokens: the model's own are best
_PANIC = "PanicException"  # of Rust; it can't be imported, and is no Exception
_MAX_MESSAGE = 300
_PLACE = re.compile(r"at (\d+)\((\d+)\): ")  # in the grammar as the library has it
_EXCERPT = re.compile(r"\n\s+\d+ \| ")  # of that
_OF_SCHEMA = "failed to compile JSON schema: "
_STOP = re.compile("No[A-Z][A-Za-z]+")  # the library's names for dead ends
# Some milliseconds a token, at most. To compile takes seconds all the same for thousands of properties, and has no end
# for an intersection of many patterns: a limit of time and one of memory are needed beside these (see `worker`).
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens()
        self.special_token_ids = sorted(vocabulary.control.keys() | set(vocabulary.eos_token_ids))
        self.eos_token_id = vocabulary.eos_token_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        """Encode nothing: that would serve to force tokens, which `_FREE` keeps from happening."""
        del text
        return []


class Matchers:
    """Where each answer stands, by its key. Any thread may call, one at a time for the same answer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare the vocabulary: a large one takes seconds, for which Python's global lock is held.

        Raises:
            GrammarError: no token ends an answer.
        """
        ends = [token_id for token_id in vocabulary.eos_token_ids if token_id < vocabulary.size]
        if not ends:
            raise GrammarError("the model has no token that ends an answer")
        self._mask_bytes = vocabulary.mask_bytes
        vocabulary = vocabulary._replace(eos_token_ids=tuple(ends))
        tokens = _Tokens(vocabulary)
        self._tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=ends)
        self._forced = ForcedTokens(tokens.tokens, (*ends, *vocabulary.control))
        self._ends = frozenset(ends)
        self._matchers: dict[int, LLMatcher] = {}
        self._compiled: tuple[Grammar, LLMatcher] | None = None

    def __len__(self) -> int:
        return len(self._matchers)

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Return the beginning of a grammar, to be copied; the last one stays compiled.

        Raises:
            GrammarError: it can't be used.
        """
        last = self._compiled
        if last is not None and last[0] == grammar:
            return last[1]
        try:
            matcher = LLMatcher(self._tokenizer, _compilable(grammar), log_level=0, limits=_LIMITS)
        except ValueError as exc:
            raise GrammarError(_shown(str(exc))) from exc
        except BaseException as exc:
            if type(exc).__name__ != _PANIC:
                raise
            raise GrammarError(f"the grammar can't be compiled ({_shown(str(exc))})") from exc
        if matcher.is_error():
            raise GrammarError(_explained(_clients(matcher.get_error(), grammar.kind)))
        self._mask(matcher)  # limits that the first token runs into are the grammar's fault, too
        self._compiled = grammar, matcher
        return matcher

    def open(self, key: int, grammar: Grammar) -> bytes:
        """Begin an answer; returns which tokens may come first, a bit for each.

        Raises:
            GrammarError: the grammar can't be used.
        """
        matcher = self.compile(grammar).deep_copy()
        mask = self._mask(matcher)
        self._matchers[key] = matcher
        return mask

    def advance(self, key: int, token_ids: Sequence[int], proposed: Sequence[int] = (), most: int = 0) -> Masks:
        """Take an answer's next tokens; returns which may follow. After its end only end tokens may.

        Up to `most` tokens that may come then are foreseen: those that are `proposed`, and what is forced.

        Raises:
            GrammarError: a limit of time or memory was reached.
        """
        matcher = self._matchers.get(key)
        if matcher is None:
            raise GrammarError("the answer has ended")
        for token_id in token_ids:
            if not matcher.is_stopped():
                matcher.consume_token(token_id)
        mask = self._mask(matcher)
        return Masks(mask, tuple(self._foreseen(matcher, mask, proposed, most)) if most else ())

    def _foreseen(
        self, matcher: LLMatcher, mask: bytes, proposed: Sequence[int], most: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield tokens that may come, and the mask behind each; a limit that is reached on the way ends them alone."""
        ahead, text = matcher.deep_copy(), list(proposed)
        for _ in range(most):
            is_proposed = bool(text) and _allows(mask, text[0])
            token_id = text.pop(0) if is_proposed else self._forced.next(mask, ahead.compute_ff_bytes())
            if token_id is None or token_id in self._ends or ahead.try_consume_tokens([token_id]) != 1:
                return
            if not is_proposed:
                text = text[1:] if text[:1] == [token_id] else []
            try:
                mask = self._mask(ahead)
            except GrammarError:
                return
            yield token_id, mask

    def close(self, key: int) -> None:
        """Forget an answer."""
        self._matchers.pop(key, None)

    def _mask(self, matcher: LLMatcher) -> bytes:
        mask = matcher.compute_bitmask()
        _check(matcher)
        mask = mask[: self._mask_bytes].ljust(self._mask_bytes, b"\0")
        if not any(mask):
            raise GrammarError("no token of the vocabulary can go on with the answer")
        return mask


def _allows(mask: bytes, token_id: int) -> bool:
    return token_id < 8 * len(mask) and mask[token_id // 8] >> (token_id % 8) & 1 == 1


def _compilable(grammar: Grammar) -> str:
    """Return a grammar as llguidance takes it.

    Raises:
        GrammarError: it is not well-formed.
    """
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = _object(grammar.source)
            if grammar.strict:
                check_strict(schema)
            schema["x-guidance"] = {"whitespace_pattern": JSON_WHITE_SPACE, "lenient": not grammar.strict}
            return f"{_FREE}start: %json {json.dumps(schema)}"
        case GrammarKind.REGEX:
            made = json.loads(LLMatcher.grammar_from_regex(grammar.source))
            return f"{_FREE}{made['grammars'][0]['lark_grammar']}"
        case GrammarKind.LARK:
            return f"{_FREE}{grammar.source}"
        case GrammarKind.CHOICE:
            texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(grammar.source))
            return f"{_FREE}start: TEXT\nTEXT: {' | '.join(texts)}"  # one word for the lexer: there may be many


def _object(schema: str) -> dict[str, object]:
    """Return a JSON schema as an object, which one that is true or false becomes."""
    try:
        found = json.loads(schema)
    except (ValueError, RecursionError) as exc:
        raise GrammarError(f"the schema is not JSON: {exc}") from exc
    if isinstance(found, bool):
        found = {} if found else {"allOf": [False]}
    if not isinstance(found, dict):
        raise GrammarError(f"expected a JSON schema, got {_shown(repr(found))}")
    return found


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_explained(matcher.get_error()))


def _clients(reason: str, kind: GrammarKind) -> str:
    """Return an error of compiling in terms of what the client sent, which stands on a line behind our own."""
    reason = _EXCERPT.split(reason)[0]
    place = _PLACE.match(reason)
    if place is None:
        return reason
    told = reason[place.end() :].removeprefix(_OF_SCHEMA)
    line = max(int(place[1]) - _FREE.count("\n"), 1)
    return f"line {line}, column {place[2]}: {told}" if kind is GrammarKind.LARK else told


def _explained(reason: str) -> str:
    """Return what the library says in words that tell what is wrong."""
    reason = reason.replace("<non-verbose/>", "").strip()
    if not reason:
        return "the grammar is too complex"
    if reason.startswith("Parser Error:"):
        return _shown(f"the grammar is too complex ({reason.removeprefix('Parser Error:').strip()})")
    if _STOP.fullmatch(reason):
        return f"nothing can follow here, and the answer may not end either ({reason})"
    return _shown(reason)


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} …"
