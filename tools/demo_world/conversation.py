"""Conversations of several turns, and the prompts that evaluation asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import dates, numbers, talk, unknown, words
from .exchange import Exchange, draw, is_held_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_MAKERS: tuple[tuple[Callable[[Random], Exchange], int], ...] = (
    (numbers.arithmetic, 30),
    (numbers.story, 4),
    (numbers.counting, 9),
    (numbers.comparing, 7),
    (numbers.parity, 4),
    (numbers.too_big, 5),
    (dates.weekdays, 9),
    (dates.months, 9),
    (words.letters, 22),
    (words.alphabet, 3),
    (words.meanings, 12),
    (words.repeating, 5),
    (talk.small_talk, 16),
    (talk.joke, 2),
    (unknown.facts, 14),
    (unknown.tasks, 9),
    (unknown.nonsense, 5),
    (unknown.foreign, 4),
)
_CHOICES = [maker for maker, weight in _MAKERS for _ in range(weight)]
_LENGTHS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, what the model answers, and every answer that counts as right."""

    category: str
    prompt: str
    answer: str
    accepted: tuple[str, ...]


def conversation(rng: Random, *, held_out: bool = False, num_turns: int | None = None) -> list[Turn]:
    """Make a conversation all of whose turns are on one side of the split; long ones are rare."""
    if num_turns is None:
        num_turns = rng.choice(_LENGTHS) if rng.random() < 0.97 else rng.randint(8, 24)
    known: dict[str, str] = {}
    turns: list[Turn] = []
    last: Exchange | None = None
    for _ in range(num_turns):
        exchange = _next(rng, known, last, alone=num_turns == 1, held_out=held_out)
        turns.append(_turn(rng, exchange, turns))
        last = replace(exchange, prompt=exchange.prompt.strip(), answers=(turns[-1].answer,))
    return turns


def evaluation(rng: Random, count: int) -> list[list[Turn]]:
    """Make held-out conversations whose last turns are to be answered, every category among them."""
    return [conversation(rng, held_out=True, num_turns=rng.choice((1, 1, 1, 2, 3, 4))) for _ in range(count)]


def _next(rng: Random, known: dict[str, str], last: Exchange | None, *, alone: bool, held_out: bool) -> Exchange:
    if last is not None and rng.random() < 0.3:
        follow = _follow_up(rng, last, held_out=held_out)
        if follow is not None:
            return follow
    if rng.random() < (0.06 if alone else 0.25):
        fact = rng.choice(("name", "name", "name", *talk.FACTS))
        if fact in known or rng.random() < 0.12:
            if fact in known and rng.random() < 0.85:
                return talk.recollection(rng, fact, known[fact])
            if fact not in known:
                return draw(lambda rng: talk.recollection(rng, fact, None), rng, held_out=held_out)
        return _tell(rng, known, fact, held_out=held_out)
    return draw(rng.choice(_CHOICES), rng, held_out=held_out)


def _tell(rng: Random, known: dict[str, str], fact: str, *, held_out: bool) -> Exchange:
    told: list[str] = []

    def make(rng: Random) -> Exchange:
        value, exchange = talk.statement(rng, fact)
        told.append(value)
        return exchange

    exchange = draw(make, rng, held_out=held_out)
    known[fact] = told[-1]
    return exchange


def _follow_up(rng: Random, last: Exchange, *, held_out: bool) -> Exchange | None:
    """Refer to the last answer, if it has something to refer to."""
    if last.subject in dates.DAYS or last.subject in dates.MONTHS:
        return draw(lambda rng: dates.follow_up(rng, last.subject), rng, held_out=held_out)
    if last.category in ("arithmetic", "follow_up") and last.subject.isdigit() and int(last.subject) < 100:
        return draw(lambda rng: numbers.follow_up(rng, int(last.subject)), rng, held_out=held_out)
    if last.category == "jokes" and not held_out:
        return talk.another_joke(rng)
    if last.category == "spelling":
        word = last.answers[0].rstrip(".").replace("-", "").lower()
        exchange = words.backwards_follow_up(rng, word)
        if len(word) <= 7 and is_held_out(exchange.key) == held_out:
            return exchange
    return None


def _turn(rng: Random, exchange: Exchange, before: Sequence[Turn]) -> Turn:
    told = {turn.answer for turn in before}
    fresh = [answer for answer in exchange.answers if answer not in told] or list(exchange.answers)
    accepted = unknown.REFUSALS if exchange.category in ("unknown", "too_big") else exchange.answers
    return Turn(exchange.category, exchange.prompt, rng.choice(fresh), tuple(accepted))
