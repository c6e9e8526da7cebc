"""`unicorn generate MODEL PROMPT`: one answer, streamed to the terminal."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.cache.lookup import CacheState
from unicorn_async.cli.banner import banner
from unicorn_async.cli.event_loop import run_async
from unicorn_async.cli.log_lines import log_lines
from unicorn_async.cli.options import (
    MODEL_HELP,
    add_engine_options,
    add_sampling_options,
    engine_config,
    sampling_params,
)
from unicorn_async.cli.progress import ProgressLine, show_load
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import ConfigError
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    import argparse

    from unicorn_async.cli.log_lines import LogLines
    from unicorn_async.engine.types import FinishReason, Token
    from unicorn_async.sampling_params import SamplingParams


@dataclass(slots=True)
class Answer:
    """What came, and when: times are of time.perf_counter."""

    prompt_tokens: int
    started: float
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    first: float = 0.0
    last: float = 0.0

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first, by the time since it; None for one token."""
        count = len(self.tokens) - 1
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
    if options.logprobs is not None and not options.json:
        raise ConfigError("--logprobs: only --json shows them")
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    return run_async(_generate(options, prompt, sampling_params(options)))


async def _generate(options: argparse.Namespace, prompt: str, sampling: SamplingParams) -> int:
    model, config = options.model, engine_config(options)
    with ProgressLine() as line, log_lines(line) as logs:
        async with Engine.open(model, config=config, vulkan=options.vulkan) as engine:
            for text in banner(engine):
                line.note(text)
            await show_load(engine, line)
            ids = await engine.tokenizer.encode_soon(
                lambda its: its.encode_chat([ChatMessage("user", prompt)]) if options.chat else its.encode(prompt),
                asyncio.to_thread,
            )
            answer = await print_answer(engine, ids, sampling, logs, echo=not options.json)
            if options.json:
                report = _as_json(engine, answer)
                if options.logprobs is not None:
                    report["logprobs"] = [_logprob_json(engine, token) for token in answer.tokens]
                print(json.dumps(report, ensure_ascii=False))
            else:
                line.note(_summary(answer))
            await _keep_weights(engine, line)
    return 0


async def _keep_weights(engine: Engine, line: ProgressLine) -> None:
    """Stay until the weights are in the cache, if they are on their way there: the next start then copies them."""
    if engine.cache.state not in (CacheState.MISS, CacheState.WRITING):
        return
    line.note("keeping the weights for the next start (Ctrl-C gives it up)")
    status = await engine.cache_settled()
    line.note(f"weight cache: {status.text()}")


async def print_answer(
    engine: Engine, ids: list[int], sampling: SamplingParams, logs: LogLines, *, echo: bool
) -> Answer:
    """Generate, and with `echo` print the text as it comes; what is logged meanwhile is printed behind it."""
    answer = Answer(len(ids), time.perf_counter())
    with logs.held():
        try:
            async for token in engine.stream(ids, sampling):
                answer.last = time.perf_counter()
                answer.first = answer.first or answer.last
                answer.tokens.append(token)
                answer.text += token.text
                answer.finish_reason = token.finish_reason
                if echo and token.text:
                    print(token.text, end="", flush=True)
        finally:
            if echo:
                print(flush=True)
    return answer


def _summary(answer: Answer) -> str:
    reason = answer.finish_reason.value if answer.finish_reason else "none"
    parts = [
        f"{answer.prompt_tokens} prompt tokens, first token after {answer.first - answer.started:.2f} s",
        f"{len(answer.tokens)} tokens",
        f"ended by {reason}",
    ]
    if (speed := answer.decode_tokens_per_s) is not None:
        parts.insert(2, f"{speed:.1f} tokens/s")
    return ", ".join(parts)


def _as_json(engine: Engine, answer: Answer) -> dict[str, object]:
    device = engine.device
    return {
        "model": engine.model_name,
        "device": device.name,
        "driver": f"{device.driver_name} {device.driver_info}",
        "software": device.is_software,
        "kernels": list(engine.kernels),
        "text": answer.text,
        "token_ids": [token.id for token in answer.tokens],
        "finish_reason": answer.finish_reason.value if answer.finish_reason else None,
        "prompt_tokens": answer.prompt_tokens,
        "first_token_s": answer.first - answer.started,
        "decode_tokens_per_s": answer.decode_tokens_per_s,
        "load_s": engine.progress.seconds,
    }


def _logprob_json(engine: Engine, token: Token) -> dict[str, object]:
    likeliest = [{"id": number, "text": text, "logprob": logprob} for number, text, logprob in token.top_logprobs]
    text = engine.tokenizer.token_text(token.id)
    return {"id": token.id, "text": text, "logprob": token.logprob, "top": likeliest}
