"""`unicorn generate MODEL PROMPT`: one answer, streamed to the terminal."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.cli.banner import banner
from unicorn_async.cli.event_loop import run_async
from unicorn_async.cli.model_name import MODEL_HELP, model_and_config
from unicorn_async.cli.options import add_engine_options, add_sampling_options, sampling_params
from unicorn_async.cli.progress import ProgressLine, show_load
from unicorn_async.engine.engine import Engine
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    import argparse

    from unicorn_async.config import SamplingParams
    from unicorn_async.engine.types import FinishReason


@dataclass(slots=True)
class Answer:
    """What came, and when: times are of time.perf_counter."""

    prompt_tokens: int
    started: float
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    first: float = 0.0
    last: float = 0.0

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first, by the time since it; None for one token."""
        count = len(self.token_ids) - 1
        return count / (self.last - self.first) if count > 0 and self.last > self.first else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_sampling_options(parser)
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Generate one answer."""
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    return run_async(_generate(options, prompt, sampling_params(options)))


async def _generate(options: argparse.Namespace, prompt: str, sampling: SamplingParams) -> int:
    model, config = model_and_config(options)
    with ProgressLine() as line:
        async with Engine.open(model, config=config) as engine:
            for text in banner(engine):
                line.note(text)
            await show_load(engine, line)
            if options.chat:
                ids = engine.tokenizer.encode_chat([ChatMessage("user", prompt)])
            else:
                ids = engine.tokenizer.encode(prompt)
            answer = await _stream(engine, ids, sampling, echo=not options.json)
            if options.json:
                print(json.dumps(_as_json(engine, answer), ensure_ascii=False))
            else:
                line.note(_summary(answer))
    return 0


async def _stream(engine: Engine, ids: list[int], sampling: SamplingParams, *, echo: bool) -> Answer:
    answer = Answer(len(ids), time.perf_counter())
    async for token in engine.stream(ids, sampling):
        answer.last = time.perf_counter()
        answer.first = answer.first or answer.last
        answer.token_ids.append(token.id)
        answer.text += token.text
        answer.finish_reason = token.finish_reason
        if echo and token.text:
            print(token.text, end="", flush=True)
    if echo:
        print(flush=True)
    return answer


def _summary(answer: Answer) -> str:
    reason = answer.finish_reason.value if answer.finish_reason else "none"
    parts = [
        f"{answer.prompt_tokens} prompt tokens, first token after {answer.first - answer.started:.2f} s",
        f"{len(answer.token_ids)} tokens",
        f"ended by {reason}",
    ]
    if (speed := answer.decode_tokens_per_s) is not None:
        parts.insert(2, f"{speed:.1f} tokens/s")
    return ", ".join(parts)


def _as_json(engine: Engine, answer: Answer) -> dict[str, object]:
    return {
        "model": engine.model_name,
        "device": engine.device.name,
        "software": engine.device.is_software,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason.value if answer.finish_reason else None,
        "prompt_tokens": answer.prompt_tokens,
        "first_token_s": answer.first - answer.started,
        "decode_tokens_per_s": answer.decode_tokens_per_s,
        "load_s": engine.progress.seconds,
    }
