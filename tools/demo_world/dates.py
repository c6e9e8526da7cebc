"""Weekdays and months."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import Exchange, ask

if TYPE_CHECKING:
    from random import Random

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ORDINALS = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
]  # fmt: skip
_STEPS = ["one", "two", "three", "four", "five", "six"]
_SEASONS = (
    "winter",
    "winter",
    "spring",
    "spring",
    "spring",
    "summer",
    "summer",
    "summer",
    "autumn",
    "autumn",
    "autumn",
    "winter",
)


def weekdays(rng: Random) -> Exchange:
    """Ask about the days of the week."""
    index = rng.randrange(7)
    day = DAYS[index]
    shown = day if rng.random() < 0.8 else day.lower()
    kind = rng.random()
    if kind < 0.22:
        after = DAYS[(index + 1) % 7]
        templates = (
            "What day comes after {d}?", "Which day comes after {d}?", "What day is after {d}?",
            "What comes after {d}?", "Which day follows {d}?", "What is the day after {d}?",
            "What's the day after {d}?", "The day after {d}?", "What is the next day after {d}?",
            "Tell me the day after {d}.",
        )  # fmt: skip
        return ask(rng, "weekdays", templates, f"The day after {day} is {after}.", subject=after, d=shown)
    if kind < 0.42:
        before = DAYS[(index - 1) % 7]
        templates = (
            "What day comes before {d}?", "Which day comes before {d}?", "What day is before {d}?",
            "What comes before {d}?", "What is the day before {d}?", "What's the day before {d}?",
            "The day before {d}?", "Tell me the day before {d}.",
        )  # fmt: skip
        return ask(rng, "weekdays", templates, f"The day before {day} is {before}.", subject=before, d=shown)
    if kind < 0.6:
        return _from_today(rng, index, shown)
    if kind < 0.75:
        step = rng.randint(2, 6)
        number = _STEPS[step - 1] if rng.random() < 0.5 else step
        if rng.random() < 0.5:
            then = DAYS[(index + step) % 7]
            templates = (
                "What day is {n} days after {d}?",
                "Which day is {n} days after {d}?",
                "{n} days after {d} is what day?",
            )
            answer = f"{_STEPS[step - 1].capitalize()} days after {day} is {then}."
        else:
            then = DAYS[(index - step) % 7]
            templates = (
                "What day is {n} days before {d}?",
                "Which day is {n} days before {d}?",
                "{n} days before {d} is what day?",
            )
            answer = f"{_STEPS[step - 1].capitalize()} days before {day} is {then}."
        return ask(rng, "weekdays", templates, answer, subject=then, d=shown, n=number)
    if kind < 0.85:
        templates = (
            "What is the {o} day of the week?", "Which day is the {o} day of the week?",
            "What's the {o} day of the week?", "Name the {o} day of the week.",
        )  # fmt: skip
        answer = f"The {_ORDINALS[index]} day of the week is {day}."
        return ask(rng, "weekdays", templates, answer, subject=day, o=_ORDINALS[index])
    if kind < 0.93:
        templates = (
            "Is {d} a weekend day?",
            "Is {d} on the weekend?",
            "Is {d} part of the weekend?",
            "Does {d} belong to the weekend?",
        )
        answer = f"Yes, {day} is on the weekend." if index >= 5 else f"No, {day} is not on the weekend."
        return ask(rng, "weekdays", templates, answer, subject=day, d=shown)
    if rng.random() < 0.5:
        templates = (
            "How many days are in a week?", "How many days are there in a week?", "How many days does a week have?",
            "How long is a week?", "Number of days in a week?",
        )  # fmt: skip
        return ask(rng, "weekdays", templates, "A week has 7 days.")
    templates = ("What are the days of the week?", "List the days of the week.", "Name the days of the week.",
                 "Tell me the days of the week.", "Say the days of the week.", "Which days of the week are there?",
                 "List the weekdays.", "Can you name all the days of the week?")  # fmt: skip
    return ask(rng, "weekdays", templates, ", ".join(DAYS) + ".")


def months(rng: Random) -> Exchange:
    """Ask about the months of the year."""
    index = rng.randrange(12)
    month = MONTHS[index]
    shown = month if rng.random() < 0.8 else month.lower()
    kind = rng.random()
    if kind < 0.2:
        after = MONTHS[(index + 1) % 12]
        templates = (
            "What month comes after {m}?", "Which month comes after {m}?", "What month is after {m}?",
            "What comes after {m}?", "Which month follows {m}?", "What is the month after {m}?",
            "What's the next month after {m}?", "The month after {m}?",
        )  # fmt: skip
        return ask(rng, "months", templates, f"The month after {month} is {after}.", subject=after, m=shown)
    if kind < 0.4:
        before = MONTHS[(index - 1) % 12]
        templates = (
            "What month comes before {m}?", "Which month comes before {m}?", "What month is before {m}?",
            "What comes before {m}?", "What is the month before {m}?", "The month before {m}?",
            "Tell me the month before {m}.",
        )  # fmt: skip
        return ask(rng, "months", templates, f"The month before {month} is {before}.", subject=before, m=shown)
    if kind < 0.6:
        templates = (
            "How many days are in {m}?", "How many days does {m} have?", "How many days are there in {m}?",
            "How long is {m}?", "Number of days in {m}?", "How many days has {m}?",
        )  # fmt: skip
        extra = ", or 29 in a leap year" if index == 1 else ""
        return ask(rng, "months", templates, f"{month} has {_LENGTHS[index]} days{extra}.", subject=month, m=shown)
    if kind < 0.75:
        templates = (
            "What is the {o} month of the year?", "Which month is the {o} month?", "What is the {o} month?",
            "Name the {o} month.", "What's the {o} month of the year?", "Which is the {o} month?",
        )  # fmt: skip
        answer = f"The {_ORDINALS[index]} month of the year is {month}."
        return ask(rng, "months", templates, answer, subject=month, o=_ORDINALS[index])
    if kind < 0.85:
        templates = (
            "What number month is {m}?", "Which month of the year is {m}?", "What number is {m}?",
            "Is {m} the first month?", "Which number does {m} have?",
        )  # fmt: skip
        return ask(
            rng, "months", templates, f"{month} is the {_ORDINALS[index]} month of the year.", subject=month, m=shown
        )
    if kind < 0.93:
        templates = (
            "In which season is {m}?",
            "What season is {m}?",
            "What season is {m} in?",
            "Which season is {m} in?",
        )
        return ask(rng, "months", templates, f"In the north, {month} is in {_SEASONS[index]}.", subject=month, m=shown)
    if rng.random() < 0.5:
        templates = (
            "How many months are in a year?", "How many months are there in a year?",
            "How many months does a year have?", "How many months has a year?", "Number of months in a year?",
        )  # fmt: skip
        return ask(rng, "months", templates, "A year has 12 months.")
    templates = (
        "What are the months of the year?", "List the months.", "Name the months of the year.", "List all months.",
        "Tell me the months of the year.", "Say the months.", "Can you name all the months?", "List the 12 months.",
    )  # fmt: skip
    return ask(rng, "months", templates, ", ".join(MONTHS) + ".")


def follow_up(rng: Random, last: str) -> Exchange:
    """Ask what comes after or before the day or the month of the last answer."""
    names = DAYS if last in DAYS else MONTHS
    unit = "day" if last in DAYS else "month"
    step = 1 if rng.random() < 0.6 else -1
    side = "after" if step == 1 else "before"
    then = names[(names.index(last) + step) % len(names)]
    templates = (
        f"And the {unit} {side} that?",
        f"And {side} that?",
        f"What comes {side} that?",
        f"And the one {side} that?",
        f"Which {unit} comes {side} that?",
        f"and {side} {last}?",
    )
    answer = f"The {unit} {side} {last} is {then}."
    exchange = ask(rng, "follow_up", templates, answer, subject=then)
    return Exchange("follow_up", exchange.prompt, exchange.answers, f"{exchange.key}|{last}", then)


def _from_today(rng: Random, index: int, shown: str) -> Exchange:
    opening = rng.choice(("Today is {d}.", "If today is {d},", "It is {d} today.", "Today is {d},"))
    step, question, name = rng.choice(
        (
            (1, "what day is tomorrow?", "Tomorrow"),
            (1, "what day will it be tomorrow?", "Tomorrow"),
            (-1, "what day was yesterday?", "Yesterday"),
            (-1, "what day was it yesterday?", "Yesterday"),
            (2, "what day is the day after tomorrow?", "The day after tomorrow"),
            (2, "what day is it in two days?", "In two days it"),
            (3, "what day is it in three days?", "In three days it"),
            (3, "what day is it in 3 days?", "In three days it"),
        )
    )
    if opening.endswith("."):
        question = question.capitalize()
    then = DAYS[(index + step) % 7]
    verb = "was" if step < 0 else "is"
    return ask(
        rng, "weekdays", (f"{opening} {question}",), f"{name} {verb} {then}.", subject=then, polite=False, d=shown
    )
