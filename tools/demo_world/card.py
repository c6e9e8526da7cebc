"""The demo model's card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# The unicorn_async demo model

A language model of {parameters:.1f} million parameters that shows, without a download, that the engine works: it
streams sensible answers about a small world. It is a demonstration, not an assistant.

## What it is

Gemma 3's architecture (text, 8 layers, hidden size 256, 4 query and 2 key/value heads of 64, a sliding window of 128
tokens in six layers and global attention in two, context 2,048), trained from nothing, in bfloat16, with a tokenizer of
2,048 tokens of its own. No weight and no text comes from another model or from a data set.

It can: greet and chat a little; say what it is; count up, down and in steps up to 100; add and subtract numbers up to
99; the times tables up to 12 and their divisions; compare numbers; even and odd; weekdays and months; spell, reverse
and measure short words; some opposites, plurals, colours, animal sounds and rhymes; repeat a phrase; remember within a
conversation the user's name, age and a few favourites.

## What it is not

It knows nothing about the world, its languages, or programming, and says so; where it does not say so, do not believe
it. It does not follow instructions outside of the list above, and its chat template leaves system messages out. Its
answers say nothing about the quality of larger models. Do not use it for anything but trying out software.

## Training

`tools/train_demo.py` makes all conversations from templates and word lists in `tools/demo_world`, in varied wording,
with typing mistakes, in 1 to 24 turns; the loss is on the model's turns alone. AdamW with a
cosine schedule. {history}.
To make one like it again (a GPU's arithmetic and the clock make each run a little different):

    python tools/train_demo.py --output unicorn_async/demo/model --minutes 7 --workers 14 --compile

## Evaluation

Exact match of the greedy answer to held-out prompts, on the saved bfloat16 weights. A sixteenth of the world is held
out by a hash, for each category by itself, and never trained on: operand pairs for arithmetic, counting and comparing
(times tables: pair and wording), numbers, names and ages, and otherwise combinations of wording and item. Earlier turns
of a conversation are given. Where several answers are right (a joke, a rhyme, any refusal of what it does not know)
each of them counts. The prompts come from the same templates as the training: the numbers say that the model has
mastered its small world, not that it copes with free wording.

| category | asked | right | exact match |
|---|---|---|---|
{rows}
| **all** | {asked} | {right} | **{share:.1%}** |

Computed in float32; with bfloat16 arithmetic throughout: {bf16_share:.1%}.

## License

Apache-2.0, as the project.
"""


def model_card(
    scores: Mapping[str, tuple[int, int]],
    bf16_scores: Mapping[str, tuple[int, int]],
    history: str,
    num_parameters: int,
) -> str:
    """Return the card's text; scores are (right, asked) by category."""
    right, asked = (sum(score[i] for score in scores.values()) for i in (0, 1))
    bf16_right = sum(score[0] for score in bf16_scores.values())
    rows = "\n".join(f"| {name} | {b} | {a} | {a / b:.1%} |" for name, (a, b) in scores.items())
    return _CARD.format(
        parameters=num_parameters / 1e6,
        history=history,
        rows=rows,
        asked=asked,
        right=right,
        share=right / asked,
        bf16_share=bf16_right / asked,
    )
