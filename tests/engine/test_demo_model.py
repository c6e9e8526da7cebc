"""The bundled model: the tokens that transformers gives, and answers that are right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import unicorn_async
from tests.golden.demo import demo_answers
from unicorn_async.config import KVDType
from unicorn_async.engine.types import FinishReason
from unicorn_async.tokenizer import ChatMessage

from .answers import answer
from .invariance import check_invariance, random_jobs

if TYPE_CHECKING:
    from .conftest import OpenEngine

MODEL = Path(unicorn_async.__file__).parent / "demo" / "model"
TOLERANCE = 3e-2  # in standard deviations of the logits
QUESTIONS = {"What is 17 + 25?": "42", "What is 60 - 18?": "42", "Which day comes after Monday?": "Tuesday"}


async def test_conversations_are_continued_as_transformers_does(open_engine: OpenEngine) -> None:
    """64 tokens each, past the end tokens, all conversations in the same steps."""
    expected = demo_answers()
    async with open_engine(MODEL) as engine:
        found = await asyncio.gather(
            *(answer(engine, one.prompt, max_tokens=len(one.continuation)) for one in expected)
        )
        for one, continued in zip(expected, found, strict=True):
            assert tuple(continued.ids) == one.continuation, one.messages


async def test_logits_agree_with_the_reference(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL, kv_dtype=KVDType.F32) as engine:
        for one in demo_answers():
            logits = (await engine.logits(one.prompt))[-len(one.logits) :]
            assert np.abs(logits - one.logits).max() <= TOLERANCE * one.logits.std(), one.messages


async def test_questions_are_answered(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL) as engine:
        for question, right in QUESTIONS.items():
            prompt = engine.tokenizer.encode_chat([ChatMessage("user", question)])
            found = await answer(engine, prompt, ignore_eos=False, max_tokens=64)
            assert right in found.text
            assert found.finish_reason is FinishReason.STOP


@pytest.mark.whole("that 64 requests to a trained model get what each gets alone; a few of random ones do so always")
async def test_requests_that_join_and_leave_get_what_they_get_alone(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL, max_num_seqs=16) as engine:
        reference = demo_answers()[0]
        logits = (await engine.logits(reference.prompt))[-len(reference.logits) :]
        logit_error = float(np.abs(logits - reference.logits).max())
        await check_invariance(engine, random_jobs(2048, lengths=(1, 2, 5, 17), most_tokens=10), logit_error)
