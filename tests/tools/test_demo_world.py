"""The conversations that the demo model is trained on are right, and apart from those that it is evaluated on."""

from __future__ import annotations

import re
import sys
from operator import add, floordiv, mul, sub
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from demo_world import numbers
from demo_world.conversation import conversation, evaluation
from demo_world.exchange import draw, is_held_out

SIGNS = {"+": add, "-": sub, "x": mul, "/": floordiv}


def test_training_and_evaluation_share_no_prompt_of_arithmetic() -> None:
    rng = Random(1)
    trained = {draw(numbers.arithmetic, rng, held_out=False).prompt for _ in range(20_000)}
    asked = {draw(numbers.arithmetic, rng, held_out=True).prompt for _ in range(500)}
    assert not trained & asked


def test_a_drawn_exchange_is_on_the_wanted_side_of_the_split() -> None:
    rng = Random(2)
    for held_out in (False, True):
        for _ in range(200):
            assert is_held_out(draw(numbers.counting, rng, held_out=held_out).key) == held_out


def test_every_answer_of_arithmetic_is_right() -> None:
    rng = Random(3)
    for _ in range(2000):
        (answer,) = numbers.arithmetic(rng).answers
        match = re.fullmatch(r"(\d+) ([-+x/]) (\d+) = (-?\d+)\.", answer)
        assert match, answer
        a, sign, b, result = match.groups()
        assert SIGNS[sign](int(a), int(b)) == int(result), answer


def test_a_conversation_depends_on_its_seed_alone() -> None:
    assert conversation(Random(4)) == conversation(Random(4))


def test_every_answer_is_among_the_accepted_ones_and_no_slot_is_left_open() -> None:
    rng = Random(5)
    for turns in [conversation(rng) for _ in range(2000)] + evaluation(rng, 200):
        for turn in turns:
            assert turn.answer in turn.accepted
            assert turn.prompt.strip()
            assert not re.search(r"\{[a-z]\}", turn.prompt + turn.answer), turn
