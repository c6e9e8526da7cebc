"""Arithmetic, counting, comparing, even and odd."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from .exchange import Exchange, ask

if TYPE_CHECKING:
    from random import Random

_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_THINGS = [
    "apples", "pears", "books", "coins", "cards", "stamps", "marbles", "cookies", "pencils", "balls", "eggs",
    "stickers", "shells", "buttons",
]  # fmt: skip

_ADD = (
    "What is {a} + {b}?", "What is {a} + {b}?", "What's {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?",
    "{a} + {b} =", "{a}+{b}=", "What is {a} plus {b}?", "What's {a} plus {b}?", "{a} plus {b}",
    "How much is {a} plus {b}?", "How much is {a} + {b}?", "Can you add {a} and {b}?", "Add {a} and {b}.",
    "Could you add {a} and {b} for me?", "Calculate {a} + {b}.", "Compute {a} + {b}.",
    "What is the sum of {a} and {b}?", "The sum of {a} and {b}?", "Tell me {a} + {b}.",
    "Tell me what {a} plus {b} is.", "Do you know what {a} + {b} is?", "What does {a} + {b} equal?",
    "What do {a} and {b} make together?", "And {a} + {b}?", "What about {a} + {b}?", "Solve {a} + {b}.",
    "What is {a}+{b}?", "Can you calculate {a} + {b}?", "How about {a} plus {b}?", "Sum {a} and {b}.",
    "I need to know {a} + {b}.",
)  # fmt: skip
_SUBTRACT = (
    "What is {a} - {b}?", "What is {a} - {b}?", "What's {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?",
    "{a} - {b} =", "What is {a} minus {b}?", "What's {a} minus {b}?", "{a} minus {b}", "How much is {a} minus {b}?",
    "How much is {a} - {b}?", "Subtract {b} from {a}.", "Can you subtract {b} from {a}?", "Take {b} away from {a}.",
    "Calculate {a} - {b}.", "Compute {a} - {b}.", "Tell me {a} - {b}.", "Do you know what {a} - {b} is?",
    "And {a} - {b}?", "What does {a} - {b} equal?", "What about {a} minus {b}?", "Solve {a} - {b}.",
    "What is {a}-{b}?", "Can you calculate {a} - {b}?",
)  # fmt: skip
_MULTIPLY = (
    "What is {a} x {b}?", "What is {a} * {b}?", "What is {a} × {b}?", "{a} x {b}", "{a} * {b}", "{a}*{b}",
    "{a} × {b} = ?", "What is {a} times {b}?", "What's {a} times {b}?", "{a} times {b}", "How much is {a} times {b}?",
    "Multiply {a} by {b}.", "Can you multiply {a} by {b}?", "Multiply {a} and {b}.", "Calculate {a} * {b}.",
    "Compute {a} x {b}.", "What is the product of {a} and {b}?", "Tell me {a} times {b}.",
    "Do you know {a} times {b}?", "And {a} times {b}?", "What about {a} x {b}?", "What is {a}x{b}?",
)  # fmt: skip
_DIVIDE = (
    "What is {a} / {b}?", "{a} / {b}", "{a}/{b}", "What is {a} divided by {b}?", "What's {a} divided by {b}?",
    "{a} divided by {b}", "Divide {a} by {b}.", "Can you divide {a} by {b}?", "How much is {a} divided by {b}?",
    "Calculate {a} / {b}.", "What is {a} ÷ {b}?", "{a} : {b}",
)  # fmt: skip
TOO_BIG = (
    "Sorry, that is too hard for me. I can add and subtract numbers up to 99, and I know the times tables up to 12."
)


def in_words(number: int) -> str:
    """Return a number from 0 to 99 in words."""
    if number < 20:
        return _ONES[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")


def arithmetic(rng: Random) -> Exchange:
    """Add, subtract, multiply or divide two numbers; held out by operation and operands, tables by wording too."""
    kind = rng.random()
    if kind < 0.42:
        return _operation(rng, "+", _number(rng), _number(rng))
    if kind < 0.78:
        a, b = _number(rng), _number(rng)
        return _operation(rng, "-", max(a, b), min(a, b)) if rng.random() < 0.8 else _operation(rng, "-", a, b)
    if kind < 0.92:
        return _operation(rng, "x", rng.randint(0, 12), rng.randint(0, 12))
    b = rng.randint(1, 12)
    return _operation(rng, "/", b * rng.randint(0, 12), b)


def story(rng: Random) -> Exchange:
    """Ask for a sum or a difference in a sentence about things."""
    things = rng.choice(_THINGS)
    a, b = rng.randint(2, 60), rng.randint(2, 39)
    if rng.random() < 0.5:
        templates = (
            "I have {a} {t} and get {b} more. How many {t} do I have?",
            "I had {a} {t} and I found {b} more. How many {t} do I have now?",
            "If I have {a} {t} and you give me {b} {t}, how many {t} do I have?",
        )
        return ask(
            rng, "story", templates, f"You have {a + b} {things}.", key=f"+{a},{b}", polite=False, a=a, b=b, t=things
        )
    a, b = max(a, b) + 1, min(a, b)
    templates = (
        "I have {a} {t} and lose {b}. How many {t} do I have left?",
        "I had {a} {t} and gave away {b}. How many {t} are left?",
        "If I have {a} {t} and eat {b} of them, how many {t} are left?",
    )
    return ask(
        rng, "story", templates, f"You have {a - b} {things} left.", key=f"-{a},{b}", polite=False, a=a, b=b, t=things
    )


def follow_up(rng: Random, last: int) -> Exchange:
    """Go on calculating with the last result."""
    n = rng.randint(1, min(20, 99))
    kind = rng.randrange(3)
    if kind == 0 and last < 100:
        templates = (
            "And plus {n}?",
            "Now add {n}.",
            "Add {n} to that.",
            "Plus {n}?",
            "And if you add {n}?",
            "plus {n}",
        )
        return ask(
            rng, "follow_up", templates, f"{last} + {n} = {last + n}.", key=f"+{last},{n}", subject=str(last + n), n=n
        )
    if kind == 1 and last < 100:
        templates = ("And minus {n}?", "Now subtract {n}.", "Subtract {n} from that.", "Take away {n}.", "minus {n}")
        return ask(
            rng, "follow_up", templates, f"{last} - {n} = {last - n}.", key=f"-{last},{n}", subject=str(last - n), n=n
        )
    templates = ("Is that even or odd?", "Is it even or odd?", "Is that number even or odd?", "Is this even or odd?")
    return ask(rng, "follow_up", templates, f"{last} is {_parity(last)}.", key=f"p{last}", subject=str(last))


def counting(rng: Random) -> Exchange:
    """Count up, down or in steps; held out by the first and the last number and the step."""
    kind = rng.random()
    length = rng.randint(2, 24) if rng.random() < 0.95 else rng.randint(25, 100)
    if kind < 0.22:
        n = length + 1
        templates = (
            "Count to {n}.",
            "Can you count to {n}?",
            "Count up to {n}.",
            "Please count to {n}.",
            "Count from one to {n}.",
        )
        return ask(rng, "counting", templates, _listed(range(1, n + 1)), key=f"1,{n},1", n=n)
    if kind < 0.55:
        a = rng.randint(0, 100 - length)
        templates = (
            "Count from {a} to {b}.", "Can you count from {a} to {b}?", "Count {a} to {b}.",
            "Count up from {a} to {b}.", "Say the numbers from {a} to {b}.", "List the numbers from {a} to {b}.",
            "Please count from {a} to {b}.",
        )  # fmt: skip
        return ask(
            rng, "counting", templates, _listed(range(a, a + length + 1)), key=f"{a},{a + length},1", a=a, b=a + length
        )
    if kind < 0.7:
        a = rng.randint(length, 100)
        b = a - length
        templates = ("Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "Count from {a} down to {b}.")
        return ask(rng, "counting", templates, _listed(range(a, b - 1, -1)), key=f"{a},{b},-1", a=a, b=b)
    if kind < 0.78:
        a = rng.randint(3, 20)
        templates = (
            "Count down from {a}.",
            "Count backwards from {a}.",
            "Can you count down from {a}?",
            "Countdown from {a}.",
        )
        return ask(rng, "counting", templates, _listed(range(a, -1, -1)), key=f"{a},0,-1", a=a)
    if kind < 0.9:
        step = rng.choice((2, 3, 4, 5, 10))
        b = step * rng.randint(2, 100 // step if step > 4 else 16)
        word = {2: "twos", 3: "threes", 4: "fours", 5: "fives", 10: "tens"}[step]
        templates = (
            "Count to {b} by {w}.",
            "Count by {w} to {b}.",
            "Count to {b} in steps of {s}.",
            "Count in {w} up to {b}.",
        )
        return ask(
            rng, "counting", templates, _listed(range(step, b + 1, step)), key=f"{b},{step}", b=b, w=word, s=step
        )
    n = rng.randint(1, 99)
    if rng.random() < 0.5:
        templates = (
            "What number comes after {n}?",
            "Which number comes after {n}?",
            "What comes after {n}?",
            "The number after {n}?",
        )
        return ask(rng, "counting", templates, f"After {n} comes {n + 1}.", key=f"after{n}", subject=str(n + 1), n=n)
    templates = (
        "What number comes before {n}?",
        "Which number comes before {n}?",
        "What comes before {n}?",
        "The number before {n}?",
    )
    return ask(rng, "counting", templates, f"Before {n} comes {n - 1}.", key=f"before{n}", subject=str(n - 1), n=n)


def comparing(rng: Random) -> Exchange:
    """Say which of two numbers is bigger or smaller; held out by the pair."""
    a = _number(rng)
    b = _number(rng) if rng.random() < 0.95 else a
    key = f"{a},{b}"
    kind = rng.randrange(4)
    if kind == 0:
        templates = (
            "Which is bigger, {a} or {b}?", "Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?",
            "What is more, {a} or {b}?", "Is {a} or {b} bigger?", "Which is greater, {a} or {b}?",
            "{a} or {b}, which is bigger?",
        )  # fmt: skip
        answer = f"{a} and {b} are equal." if a == b else f"{max(a, b)} is bigger than {min(a, b)}."
    elif kind == 1:
        templates = (
            "Which is smaller, {a} or {b}?", "Which is less, {a} or {b}?", "Which number is smaller: {a} or {b}?",
            "What is less, {a} or {b}?", "Is {a} or {b} smaller?", "{a} or {b}, which is smaller?",
        )  # fmt: skip
        answer = f"{a} and {b} are equal." if a == b else f"{min(a, b)} is smaller than {max(a, b)}."
    elif kind == 2:
        templates = (
            "Is {a} bigger than {b}?", "Is {a} greater than {b}?", "Is {a} larger than {b}?", "Is {a} more than {b}?",
            "Is {a} > {b}?",
        )  # fmt: skip
        answer = _verdict(a > b, a, b)
    else:
        templates = ("Is {a} smaller than {b}?", "Is {a} less than {b}?", "Is {a} < {b}?", "Is {a} lower than {b}?")
        answer = _verdict(a < b, a, b)
    return ask(rng, "comparing", templates, answer, key=key, a=a, b=b)


def parity(rng: Random) -> Exchange:
    """Say whether a number is even or odd; held out by the number."""
    n = rng.randint(0, 99) if rng.random() < 0.7 else rng.randint(100, 999)
    kind = rng.randrange(3)
    if kind == 0:
        templates = (
            "Is {n} even or odd?",
            "Is {n} odd or even?",
            "Is the number {n} even or odd?",
            "{n}: even or odd?",
        )
        return ask(rng, "parity", templates, f"{n} is {_parity(n)}.", key=str(n), subject=str(n), n=n)
    asked = ("even", "odd")[kind - 1]
    templates = ("Is {n} %s?" % asked, "Is {n} an %s number?" % asked, "Is the number {n} %s?" % asked)  # noqa: UP031
    verdict = "Yes" if _parity(n) == asked else "No"
    return ask(rng, "parity", templates, f"{verdict}, {n} is {_parity(n)}.", key=str(n), subject=str(n), n=n)


def too_big(rng: Random) -> Exchange:
    """Ask for arithmetic outside of the model's world; held out by operands."""
    a, b = rng.randint(100, 99999), rng.randint(2, 99999)
    if rng.random() < 0.3:
        a, b = b, a
    kind = rng.random()
    if kind < 0.3:
        templates, key = _ADD, f"+{a},{b}"
    elif kind < 0.55:
        templates, key = _SUBTRACT, f"-{a},{b}"
    elif kind < 0.75:
        a, b = rng.randint(13, 999), rng.randint(13, 999)
        templates, key = _MULTIPLY, f"x{a},{b}"
    elif kind < 0.82:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        first, second = rng.choice("+-*"), rng.choice("+-*")
        templates = tuple(
            f"{opening}{{a}} {first} {{b}} {second} {rng.randint(0, 99)}{end}"
            for opening, end in (("What is ", "?"), ("", ""), ("Calculate ", "."), ("How much is ", "?"))
        )
        key = f"three{a},{b}"
    elif kind < 0.9:
        a, b = rng.randint(145, 9999), rng.randint(13, 99)
        templates, key = _DIVIDE, f"/{a},{b}"
    else:
        templates = (
            "What is the square root of {a}?", "What is {a} squared?", "What is {a} to the power of {b}?",
            "What is {b}% of {a}?", "Is {a} a prime number?", "Factor {a}.", "What is the logarithm of {a}?",
            "Integrate x^2 from 0 to {b}.", "Solve x + {b} = {a}.", "What is the sine of {a}?",
            "Solve the equation {b}x = {a}.", "Convert {a} to binary.",
        )  # fmt: skip
        key = f"?{a},{b}"
    return ask(rng, "too_big", templates, TOO_BIG, key=key, a=a, b=b)


def _operation(rng: Random, sign: str, a: int, b: int) -> Exchange:
    result = {"+": a + b, "-": a - b, "x": a * b, "/": a // b if b else 0}[sign]
    templates = {"+": _ADD, "-": _SUBTRACT, "x": _MULTIPLY, "/": _DIVIDE}[sign]
    words = rng.random() < 0.08 and a < 100 and b < 100
    shown = (in_words(a), in_words(b)) if words else (a, b)
    if words:
        templates = tuple(t for t in templates if any(w in t for w in ("plus", "minus", "times", "divided", "and {b}")))
    template = rng.choice(templates)
    # The tables are learnt by heart: their held-out pairs are trained on too, in other wordings than they are asked in.
    by_heart = sign in "x/" and zlib.crc32(template.encode()) % 4 != 0
    key = f"{sign} by heart" if by_heart else f"{sign}{a},{b}"
    answer = f"{a} {sign} {b} = {result}."
    return ask(rng, "arithmetic", (template,), answer, key=key, subject=str(result), a=shown[0], b=shown[1])


def _number(rng: Random) -> int:
    return rng.randint(0, 99) if rng.random() < 0.85 else rng.randint(0, 12)


def _listed(numbers: range) -> str:
    return ", ".join(str(number) for number in numbers) + "."


def _parity(number: int) -> str:
    return "odd" if number % 2 else "even"


def _verdict(truth: bool, a: int, b: int) -> str:
    relation = "equal to" if a == b else "bigger than" if a > b else "smaller than"
    return f"{'Yes' if truth else 'No'}, {a} is {relation} {b}."
