"""Word tasks: spelling, reversing, letters, plurals, opposites, colours, sounds, rhymes and repeating."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import Exchange, ask
from .lexicon import COLOURS, OPPOSITES, PHRASES, PLURALS, RHYMES, SOUNDS, WORDS, made_up

if TYPE_CHECKING:
    from random import Random

_SPELL = (
    "Spell {w}.", "Spell the word {w}.", "How do you spell {w}?", "Can you spell {w}?", "How is {w} spelled?",
    "Please spell {w}.", "Can you spell the word {w}?", 'Spell "{w}".', "How do I spell {w}?", "Could you spell {w}?",
    "What are the letters of {w}?", "Tell me how to spell {w}.",
)  # fmt: skip
_REVERSE = (
    "Reverse {w}.", "Reverse the word {w}.", "What is {w} backwards?", "Write {w} backwards.", "Can you reverse {w}?",
    "Say {w} backwards.", "Spell {w} backwards.", "What is {w} in reverse?", 'Reverse "{w}".',
    "Turn the word {w} around.",
)  # fmt: skip
_UPPER = (
    "Write {w} in capital letters.", "Write {w} in upper case.", "Make {w} upper case.", "Put {w} in capitals.",
    "Upper-case {w}.", "Can you write {w} in capital letters?", "Convert {w} to upper case.", "Say {w} in all caps.",
)  # fmt: skip
_COUNT = (
    "How many letters are in {w}?", "How many letters does {w} have?", "How many letters are in the word {w}?",
    "Count the letters in {w}.", "How long is the word {w}?", "Count the letters of {w}.", "How many letters has {w}?",
)  # fmt: skip
_FIRST = (
    "What is the first letter of {w}?", "What letter does {w} start with?", "Which letter does {w} begin with?",
    "What's the first letter of {w}?", "What is the first letter in {w}?", "First letter of {w}?",
)  # fmt: skip
_LAST = (
    "What is the last letter of {w}?", "What letter does {w} end with?", "Which letter does {w} end with?",
    "What's the last letter of {w}?", "What is the last letter in {w}?", "Last letter of {w}?",
)  # fmt: skip
_PLURAL = (
    "What is the plural of {w}?", "What's the plural of {w}?", "Plural of {w}?", "How do you say {w} in the plural?",
    "Give me the plural of {w}.", "One {w}, two what?", "What is more than one {w} called?",
)  # fmt: skip
_OPPOSITE = (
    "What is the opposite of {w}?", "What's the opposite of {w}?", "Opposite of {w}?", "Tell me the opposite of {w}.",
    "Give me the opposite of {w}.", "Which word is the opposite of {w}?", "The opposite of {w} is what?",
    "Do you know the opposite of {w}?",
)  # fmt: skip
_COLOUR = (
    "What colour is {t}?", "What color is {t}?", "Which colour is {t}?", "Tell me the colour of {t}.",
    "What is the colour of {t}?", "What is the color of {t}?", "Do you know what colour {t} is?",
)  # fmt: skip
_SOUND = (
    "What sound does a {w} make?", "What does a {w} say?", "What noise does a {w} make?",
    "Which sound does a {w} make?", "How does a {w} go?", "What does the {w} say?",
    "What sound do you hear from a {w}?",
)  # fmt: skip
_RHYME = (
    "What rhymes with {w}?", "Give me a word that rhymes with {w}.", "Tell me a rhyme for {w}.",
    "Find a rhyme for {w}.", "Which word rhymes with {w}?", "Do you know a word that rhymes with {w}?",
    "A rhyme for {w}?",
)  # fmt: skip
_REPEAT = (
    "Repeat after me: {w}", "Say {w}", "Repeat: {w}", "Please repeat: {w}", 'Say "{w}"', 'Repeat "{w}"',
    "Say this: {w}", "Can you say {w}?",
)  # fmt: skip
_VOWELS = (
    "Which vowels are in {w}?",
    "What are the vowels in {w}?",
    "List the vowels in {w}.",
    "What vowels does {w} have?",
)


def letters(rng: Random) -> Exchange:
    """Spell a word, reverse it, write it in capitals, or ask for its letters."""
    word = rng.choice(WORDS) if rng.random() < 0.65 else made_up(rng, rng.choice((1, 1, 2, 2, 3)))
    short = len(word) <= 7
    shown = word if rng.random() < 0.8 else word.capitalize()
    kind = rng.random()
    if kind < 0.3:
        return ask(rng, "spelling", _SPELL, "-".join(word.upper()) + ".", w=shown)
    if kind < 0.5 and short:
        return ask(rng, "reversing", _REVERSE, word[::-1] + ".", w=shown)
    if kind < 0.6:
        return ask(rng, "letters", _UPPER, word.upper(), w=shown)
    if kind < 0.75:
        return ask(rng, "letters", _COUNT, f"The word {word} has {len(word)} letters.", subject=str(len(word)), w=shown)
    if kind < 0.84:
        return ask(rng, "letters", _FIRST, f"The first letter of {word} is {word[0].upper()}.", w=shown)
    if kind < 0.93:
        return ask(rng, "letters", _LAST, f"The last letter of {word} is {word[-1].upper()}.", w=shown)
    vowels = [letter.upper() for letter in word if letter in "aeiou"]
    answer = f"The vowels in {word} are {', '.join(vowels)}."
    if len(vowels) < 2:
        answer = f"The only vowel in {word} is {vowels[0]}." if vowels else f"There are no vowels in {word}."
    return ask(rng, "letters", _VOWELS, answer, w=shown)


def alphabet(rng: Random) -> Exchange:
    """Ask for the alphabet or for a letter's neighbour."""
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    kind = rng.random()
    if kind < 0.2:
        templates = (
            "Say the alphabet.", "What is the alphabet?", "Can you say the alphabet?",
            "List the letters of the alphabet.", "Tell me the alphabet.", "Recite the alphabet.",
            "Write the alphabet.",
        )  # fmt: skip
        return ask(rng, "alphabet", templates, " ".join(names) + ".")
    if kind < 0.28:
        templates = ("How many letters are in the alphabet?", "How many letters does the alphabet have?",
                     "How many letters are there in the alphabet?")  # fmt: skip
        return ask(rng, "alphabet", templates, "The alphabet has 26 letters.", subject="26")
    index = rng.randrange(25)
    if kind < 0.65:
        templates = ("What letter comes after {c}?", "Which letter comes after {c}?", "What is the letter after {c}?",
                     "Which letter follows {c}?", "The letter after {c}?")  # fmt: skip
        return ask(
            rng, "alphabet", templates, f"The letter after {names[index]} is {names[index + 1]}.", c=names[index]
        )
    templates = ("What letter comes before {c}?", "Which letter comes before {c}?", "What is the letter before {c}?",
                 "The letter before {c}?")  # fmt: skip
    return ask(
        rng, "alphabet", templates, f"The letter before {names[index + 1]} is {names[index]}.", c=names[index + 1]
    )


def meanings(rng: Random) -> Exchange:
    """Ask for an opposite, a plural, a colour, a sound or a rhyme; now and then of a word that is not on the list."""
    kind = rng.randrange(5)
    unknown = rng.random() < 0.12
    strange = made_up(rng, 2)
    if kind == 0:
        word = strange if unknown else rng.choice(tuple(OPPOSITES))
        answer = (
            f"Sorry, I do not know the opposite of {word}."
            if unknown
            else f"The opposite of {word} is {OPPOSITES[word]}."
        )
        return ask(rng, "opposites", _OPPOSITE, answer, w=word)
    if kind == 1:
        word = rng.choice(tuple(PLURALS))
        return ask(rng, "plurals", _PLURAL, f"The plural of {word} is {PLURALS[word]}.", w=word)
    if kind == 2:
        thing = rng.choice(tuple(COLOURS))
        if unknown:
            return ask(rng, "colours", _COLOUR, f"Sorry, I do not know the colour of a {strange}.", t=f"a {strange}")
        verb = f"{thing[0].upper()}{thing[1:]} is {COLOURS[thing]}."
        return ask(rng, "colours", _COLOUR, verb, t=thing)
    if kind == 3:
        word = strange if unknown else rng.choice(tuple(SOUNDS))
        answer = f"Sorry, I do not know what a {word} says." if unknown else f"A {word} says {SOUNDS[word]}."
        return ask(rng, "sounds", _SOUND, answer.replace("A owl", "An owl"), w=word)
    word = strange if unknown else rng.choice(tuple(RHYMES))
    if unknown:
        return ask(rng, "rhymes", _RHYME, f"Sorry, I do not know a rhyme for {word}.", w=word)
    return ask(
        rng, "rhymes", _RHYME, tuple(f"{other.capitalize()} rhymes with {word}." for other in RHYMES[word]), w=word
    )


def repeating(rng: Random) -> Exchange:
    """Ask for a phrase to be repeated."""
    kind = rng.random()
    if kind < 0.4:
        phrase = rng.choice(PHRASES)
    elif kind < 0.8:
        phrase = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5)))
    else:
        phrase = " ".join(made_up(rng, rng.randint(1, 2)) for _ in range(rng.randint(1, 3)))
    return ask(rng, "repeating", _REPEAT, phrase, polite=False, w=phrase)


def backwards_follow_up(rng: Random, word: str) -> Exchange:
    """Ask for the last word backwards."""
    templates = (
        "And backwards?",
        "Now backwards.",
        "And in reverse?",
        "Now reverse it.",
        "Reverse it.",
        "And now backwards?",
    )
    return ask(rng, "follow_up", templates, word[::-1] + ".", key=f"reverse{word}")
