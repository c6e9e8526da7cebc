"""One question with its answers, and how its wording varies."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_HELD_OUT_ONE_IN = 16
_SLOT = re.compile(r"(\{\w+\})")
_OPENERS = (
    "please ",
    "hey, ",
    "hi, ",
    "hello, ",
    "ok, ",
    "so, ",
    "now, ",
    "well, ",
    "can you help me? ",
    "quick question: ",
)
_CLOSERS = (" please", ", please", " thanks", ", thank you", " now", " for me")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user's turn and the model's; any of `answers` is right, and one that training may pick."""

    category: str
    prompt: str
    answers: tuple[str, ...]
    key: str  # what decides whether it is held out: the item asked for, or the item and its wording
    subject: str = ""  # what a follow-up may refer to: a number, a weekday, a month


def is_held_out(key: str) -> bool:
    """Return whether exchanges of this key are kept for evaluation and never trained on."""
    return zlib.crc32(key.encode()) % _HELD_OUT_ONE_IN == 0


def draw(maker: Callable[[Random], Exchange], rng: Random, *, held_out: bool) -> Exchange:
    """Draw exchanges until one is on the wanted side of the split."""
    while True:
        exchange = maker(rng)
        if is_held_out(exchange.key) == held_out:
            return exchange


def ask(
    rng: Random,
    category: str,
    templates: Sequence[str],
    answers: str | Sequence[str],
    *,
    key: str | None = None,
    subject: str = "",
    polite: bool = True,
    **slots: object,
) -> Exchange:
    """Make an exchange from one of the templates.

    `key` names the item alone when every wording of it is held out together; without it the split is by both.
    """
    template = rng.choice(templates)
    opener = rng.choice(_OPENERS) if polite and rng.random() < 0.15 else ""
    closer = rng.choice(_CLOSERS) if polite and rng.random() < 0.12 else ""
    wording = _reword(rng, template, opener, closer)
    prompt = wording.format(**slots)
    texts = (answers,) if isinstance(answers, str) else tuple(answers)
    item = "|".join(str(value) for value in slots.values())
    return Exchange(
        category,
        prompt,
        texts,
        f"{category}|{key}" if key else f"{category}|{template}|{item}|{opener}|{closer}",
        subject,
    )


def _reword(rng: Random, template: str, opener: str, closer: str) -> str:
    text = template
    if opener:
        text = opener + (text[0].lower() + text[1:] if not text.startswith(("I ", "I'", "{")) else text)
        text = text[0].upper() + text[1:]
    if closer:
        body = text.rstrip("?.!")
        text = body + closer + text[len(body) :]
    if rng.random() < 0.2:
        text = text.rstrip("?.!") or text
    if rng.random() < 0.04:
        text = text.rstrip("?.!") + rng.choice(("!", "??", "...", " ?", " !", "?!"))
    parts = _SLOT.split(text)
    style = rng.random()
    if style < 0.22:
        parts = [part if part.startswith("{") else part.lower() for part in parts]
    elif style < 0.24:
        parts = [part if part.startswith("{") else part.upper() for part in parts]
    if rng.random() < 0.06:
        parts = [part if part.startswith("{") else _mistype(rng, part) for part in parts]
    if rng.random() < 0.05:
        parts = [part.replace("'", "") if not part.startswith("{") else part for part in parts]
    return "".join(parts)


def _mistype(rng: Random, text: str) -> str:
    """Swap, drop or double one letter inside one longer word."""
    words = [match for match in re.finditer(r"[A-Za-z]{5,}", text)]
    if not words:
        return text
    word = rng.choice(words)
    at = rng.randrange(word.start() + 1, word.end() - 2)
    kind = rng.randrange(3)
    if kind == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text[:at] + (text[at + 1 :] if kind == 1 else text[at] + text[at:])
