"""JSON that follows the schemas of the JSON Schema Test Suite, made by a model.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
    python benchmarks/json_schemas.py JSON-Schema-Test-Suite [--drafts draft7 draft2020-12] [--model demo]

Each schema of the required tests is asked for, strictly, with a few seeds. An answer that ends has to be valid by the
`jsonschema` package; a schema that is not followed has to be refused with a reason. Answers cut off by their limit of
tokens say nothing: a small model seldom ends what need not end. Exit status 1: an answer was invalid, or one hung.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
from referencing.exceptions import Unresolvable

from unicorn_async import Engine, EngineConfig, Grammar, GrammarError, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TOKENS = 160
TIME_LIMIT_S = 60.0  # of an answer; beyond it one hangs
AT_A_TIME = 16


@dataclass(slots=True)
class Tally:
    """What became of the schemas and of their answers."""

    schemas: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def groups(suite: Path, draft: str) -> Iterator[tuple[str, object]]:
    """Every schema of the required tests, with what it is about."""
    folder = suite / "tests" / draft
    if not folder.is_dir():
        raise SystemExit(f"{folder}: not a folder of the suite")
    for file in sorted(folder.glob("*.json")):
        for group in json.loads(file.read_text()):
            schema = group["schema"]
            if draft == "draft7" and isinstance(schema, dict):  # does not say so itself
                schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
            yield f"{draft}/{file.stem}: {group['description']}", schema


def shown(exc: GrammarError) -> str:
    """Return the beginning of a reason, without where in the grammar it is about."""
    return (str(exc).partition("schema: ")[2] or str(exc)).partition(" 1 |")[0][:80]


async def answer(engine: Engine, sampling: SamplingParams) -> str | None:
    """Return the answer, None where it was cut off."""
    text, reason = "", ""
    async for token in engine.stream("Write JSON.", sampling):
        text += token.text
        reason = token.finish_reason.value if token.finish_reason else ""
    return text if reason == "stop" else None


async def check(engine: Engine, name: str, schema: object, seeds: int, draft: str, tally: Tally) -> None:
    """Ask for answers of one schema."""
    grammar = Grammar.json_schema(schema if isinstance(schema, bool) else json.dumps(schema))
    try:
        await asyncio.wait_for(engine.check_grammar(grammar), TIME_LIMIT_S)
    except GrammarError as exc:
        tally.schemas["refused"] += 1
        tally.reasons[shown(exc)] += 1
        return
    except TimeoutError:
        tally.problems.append(f"{name}: its grammar hung")
        return
    tally.schemas["followed"] += 1
    kind = jsonschema.Draft7Validator if draft == "draft7" else jsonschema.Draft202012Validator
    for seed in range(seeds):
        sampling = SamplingParams(max_tokens=MOST_TOKENS, temperature=1.0, seed=seed, grammar=grammar)
        try:
            text = await asyncio.wait_for(answer(engine, sampling), TIME_LIMIT_S)
        except TimeoutError:
            tally.problems.append(f"{name}: seed {seed} hung")
            continue
        except GrammarError as exc:
            tally.answers["ended by a limit"] += 1
            tally.reasons[shown(exc)] += 1
            continue
        if text is None:
            tally.answers["cut off"] += 1
            continue
        try:
            kind(schema).validate(json.loads(text))
            tally.answers["valid"] += 1
        except Unresolvable:  # a schema elsewhere, which the validator does not have
            tally.answers["not checked"] += 1
        except (ValueError, jsonschema.ValidationError) as exc:
            tally.answers["invalid"] += 1
            tally.problems.append(f"{name}: {text[:200]!r}: {str(exc).splitlines()[0][:200]}")


async def measure(args: argparse.Namespace) -> Tally:
    tally, places = Tally(), asyncio.Semaphore(AT_A_TIME)
    config = EngineConfig(device=args.device, max_context=512)
    async with Engine.open(args.model, config=config) as engine:
        await engine.loaded()
        print(f"{engine.model_name} on {engine.device.name}", flush=True)

        async def one(name: str, schema: object, draft: str) -> None:
            async with places:
                await check(engine, name, schema, args.seeds, draft, tally)

        async with asyncio.TaskGroup() as tasks:
            for draft in args.drafts:
                for name, schema in groups(args.suite, draft):
                    tasks.create_task(one(name, schema, draft))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--drafts", nargs="+", default=["draft7", "draft2020-12"], choices=["draft7", "draft2020-12"])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    tally = asyncio.run(measure(args))
    print(f"schemas: {dict(tally.schemas)}\nanswers: {dict(tally.answers)}")
    for reason, count in tally.reasons.most_common():
        print(f"  {count:4} {reason}")
    for problem in tally.problems:
        print(f"PROBLEM {problem}")
    sys.exit(1 if tally.problems else 0)


if __name__ == "__main__":
    main()
