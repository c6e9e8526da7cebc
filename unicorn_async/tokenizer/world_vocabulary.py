"""RWKV's world vocabulary: byte strings by their ids, of which a text takes the longest each time.

Source: rwkv_vocab_v20230424.txt, beside the family's checkpoints, and the metadata that llama.cpp makes of it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerError
from unicorn_async.tokenizer.facts import ControlToken, TokenizerFacts
from unicorn_async.tokenizer.gguf.marks import TokenType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.tokenizer.files import TokenizerFiles

FILE_NAME = "rwkv_vocab_v20230424.txt"
END = "<|rwkv_tokenizer_end_of_text|>"  # token 0, which no text has
# Turns as the family's models were trained on them; llama.cpp knows this form by a name, not as a template.
TEMPLATE_NAME = "rwkv-world"
TEMPLATE = (
    "{% for message in messages %}{% set role = message['role'] %}"
    "{% if role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no role ' + role) }}{% endif %}"
    "{{ role | capitalize + ': ' + message['content'] | trim + '\n\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
_TURN_END = "\n\n"  # of its own in the vocabulary
LARGE_FILE_BYTES = 1 << 17  # of a file, which then takes 0.05 s and more
_MAX_FILE_BYTES = 16 << 20
_MAX_IDS = 1 << 20
_MAX_TOKEN_BYTES = 1024
# Of the lengths of tokens that begin alike, all of which are tried at a place of a text; the family's own has 2,169.
_MAX_TRIED_BYTES = 4096
_LINE = re.compile(r"(\d{1,7}) (b?['\"].{0,4096}['\"]) (\d{1,5})")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r"}


@dataclass(frozen=True, slots=True)
class WorldVocabulary:
    """Tokens by id, of which those that stand for nothing are empty, token 0 among them.

    `lengths` are by two bytes those of the tokens that begin with these, the longest first.

    Raises:
        TokenizerError: a byte has no token, two tokens are the same bytes, or so many lengths begin alike that a text
            of those takes long.
    """

    tokens: Sequence[bytes]
    ids: Mapping[bytes, int]
    lengths: Mapping[bytes, tuple[int, ...]]

    @classmethod
    def of(cls, tokens: Sequence[bytes], where: str) -> WorldVocabulary:
        """Check the tokens; `where` names their file."""
        ids: dict[bytes, int] = {}
        for token_id, token in enumerate(tokens):
            if token and ids.setdefault(token, token_id) != token_id:
                raise TokenizerError(f"{where}: tokens {ids[token]} and {token_id} are both {token[:100]!r}")
        missing = next((byte for byte in range(256) if bytes((byte,)) not in ids), None)
        if missing is not None:
            raise TokenizerError(f"{where}: no token is the byte {missing:#04x} alone")
        return cls(tokens, ids, _longest_first(ids, where))

    @classmethod
    def read(cls, path: Path) -> WorldVocabulary:
        """Read a file with a line for each token: its id, a literal of Python, and how many bytes that is.

        Raises:
            TokenizerError: it can't be read, or breaks these rules.
        """
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
            if len(content) > _MAX_FILE_BYTES:
                raise TokenizerError(f"{path}: at most {_MAX_FILE_BYTES} bytes are allowed")
            lines = content.decode().split("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise TokenizerError(f"{path}: {exc}") from exc
        found: dict[int, bytes] = {}
        for number, line in enumerate(lines, 1):
            if line := line.rstrip("\r"):
                token_id, token = _token_of(line, f"{path}: line {number}")
                if found.setdefault(token_id, token) is not token:
                    raise TokenizerError(f"{path}: line {number}: token {token_id} appears twice")
        return cls.of([found.get(token_id, b"") for token_id in range(max(found, default=0) + 1)], str(path))

    @classmethod
    def of_gguf(cls, tokens: Sequence[str], types: Sequence[int]) -> WorldVocabulary:
        """Make the tokens of a GGUF file's, in which bytes are escaped as in literals of Python.

        Raises:
            TokenizerError: they are no such vocabulary.
        """
        texts = (TokenType.NORMAL, TokenType.USER_DEFINED)
        pairs = zip(tokens, types, strict=True)
        return cls.of([_unescaped(token) if kind in texts else b"" for token, kind in pairs], "tokenizer.ggml.tokens")

    def facts(self, files: TokenizerFiles) -> TokenizerFacts:
        """Return what is known beside the tokens.

        Raises:
            TokenizerError: a control token is none of the vocabulary's.
        """
        named = files.special_tokens.get("eos_token")
        unknown = sorted(text for text in files.control_strings if text != END and text.encode() not in self.ids)
        if unknown:
            raise TokenizerError(f"tokens {', '.join(unknown)[:200]} beside a world vocabulary are not supported")
        is_plain = files.chat_template in (None, TEMPLATE_NAME)
        ends = [self.ids.get(text.encode(), 0) for text in (named, _TURN_END if is_plain else None) if text is not None]
        ends += [token_id for token_id in files.eos_token_ids if token_id < len(self.tokens)]
        return TokenizerFacts(
            vocab_size=len(self.tokens),
            num_ids=len(self.tokens),
            eos_token_ids=tuple(dict.fromkeys((0, *ends))),
            bos_token_id=0,
            prefix=(0,) if files.add_bos else (),
            control={0: ControlToken(END, lstrip=False, rstrip=False)},
            chat_template=TEMPLATE if is_plain else files.chat_template,
            special_tokens={**files.special_tokens, "bos_token": END},
            puts_space_once=False,
            suffix=(),
        )


def gguf_files(files: TokenizerFiles) -> TokenizerFiles:
    """Return what a GGUF file says beside its tokens, without its names for token 0 and for what is none."""
    return replace(files, special_tokens={}, control_strings=frozenset())


def _token_of(line: str, where: str) -> tuple[int, bytes]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise TokenizerError(f"{where}: expected an id, a literal and a length, got {line[:100]!r}")
    try:
        value = ast.literal_eval(match[2])
        token = value.encode() if isinstance(value, str) else value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        raise TokenizerError(f"{where}: {match[2][:100]} is no literal of Python ({exc})") from exc
    if not isinstance(token, bytes) or len(token) != int(match[3]) or not 0 < len(token) <= _MAX_TOKEN_BYTES:
        raise TokenizerError(f"{where}: expected {match[3]} bytes, 1 to {_MAX_TOKEN_BYTES}, got {match[2][:100]}")
    token_id = int(match[1])
    if not 0 < token_id < _MAX_IDS:
        raise TokenizerError(f"{where}: expected an id from 1 to {_MAX_IDS - 1}, got {token_id}")
    return token_id, token


def _unescaped(token: str) -> bytes:
    try:
        data = _ESCAPE.sub(_escaped, token).encode("latin-1")
    except UnicodeEncodeError as exc:
        raise TokenizerError(f"tokenizer.ggml.tokens: {token[:100]!r} has what is not escaped ({exc.reason})") from exc
    if len(data) > _MAX_TOKEN_BYTES:
        raise TokenizerError(f"tokenizer.ggml.tokens: a token of {len(data)} bytes, at most {_MAX_TOKEN_BYTES}")
    return data


def _escaped(match: re.Match[str]) -> str:
    kind = match[1]
    return chr(int(kind[1:], 16)) if len(kind) == 3 else _ESCAPED.get(kind, kind)


def _longest_first(tokens: Iterable[bytes], where: str) -> Mapping[bytes, tuple[int, ...]]:
    lengths: dict[bytes, set[int]] = {}
    for token in tokens:
        if len(token) > 1:
            lengths.setdefault(token[:2], set()).add(len(token))
    for start, found in lengths.items():
        if sum(found) > _MAX_TRIED_BYTES:
            raise TokenizerError(
                f"{where}: tokens that begin with {start!r} have {len(found)} lengths of {sum(found)} bytes in all, "
                f"expected at most {_MAX_TRIED_BYTES}"
            )
    return {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}
