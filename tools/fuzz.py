#!/usr/bin/env python3
"""Damage the files that models come in, and see that every reader reads or refuses them.

    fuzz.py [--minutes 10] [--target NAME ...] [--seed N] [--finds DIRECTORY]

The targets are in tests/fuzz/targets.py, with what they promise: no error but the package's own, no allocation that the
file's size does not explain, no hang. Each target runs in a process of its own, so that a crash is a find too. Where
the PyPI package atheris is installed it guides the damage by the code that it reaches; otherwise it is done at random.
What breaks a promise is written to the directory, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MOST_BYTES = 1 << 17  # of an input
GROWN_BYTES = 4 << 20  # of one in which a piece is repeated; one of so many inputs is
GROWN_OF = 100
MEMORY_BYTES = 8 << 30  # of address space, for what tracemalloc does not see
HANG_S = 60
GUIDED = ("unicorn_async.loader", "unicorn_async.models", "unicorn_async.tokenizer")


def run_random(name: str, seconds: float, seed: int, finds: Path) -> int:
    """Damage seeds, and what was read of the results, until the time is over; return the number of finds."""
    from tests.fuzz.mutations import grown, mutated
    from tests.fuzz.targets import HEADERS, BrokenPromise, check, make_targets

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="unicorn-fuzz-") as folder:
        target = make_targets(Path(folder) / "targets")[name]
        pool, runs, num_read, broken = list(target.seeds), 0, 0, dict[str, bytes]()
        for sound in target.seeds:
            check(target, sound)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            is_grown = name in HEADERS and rng.randrange(GROWN_OF) == 0
            if is_grown:
                data = grown(rng.choice(pool), rng, rng.randrange(GROWN_BYTES))
            else:
                data = mutated(rng.choice(pool), rng)[:MOST_BYTES]
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            last = finds / f"{name}-last"
            last.write_bytes(data)  # what a crash of the process was about
            try:
                was_read = check(target, data)
            except BrokenPromise as exc:
                was_read = False
                kind = str(exc)[:80]
                if kind not in broken:
                    broken[kind] = data
                    (finds / f"{name}-{len(broken)}").write_bytes(data)
                    print(f"  {exc}"[:400], flush=True)
            faulthandler.cancel_dump_traceback_later()
            runs, num_read = runs + 1, num_read + was_read
            if was_read and not is_grown:  # damage upon damage goes deeper
                pool.append(data)
                if len(pool) > 500:
                    del pool[rng.randrange(len(target.seeds), len(pool))]
        last.unlink()
    print(f"{name}: {runs} files, {num_read} of them read, {len(broken)} finds", flush=True)
    return len(broken)


def run_guided(name: str, seconds: float, seed: int, finds: Path) -> None:
    """Have atheris choose the damage; it ends the process, with an error after a find."""
    import atheris

    with atheris.instrument_imports(include=list(GUIDED)):
        from tests.fuzz.mutations import mutated
        from tests.fuzz.targets import check, make_targets

    folder = Path(tempfile.mkdtemp(prefix="unicorn-fuzz-"))
    target = make_targets(folder / "targets")[name]
    corpus = folder / "corpus"
    corpus.mkdir()
    for index, sound in enumerate(target.seeds):
        check(target, sound)
        (corpus / f"seed-{index}").write_bytes(sound)

    def damage(data: bytes, max_size: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.3:
            result: bytes = atheris.Mutate(data, max_size)
            return result
        return mutated(data, rng)[:max_size]

    def one(data: bytes) -> None:
        check(target, data)

    limits = [f"-max_total_time={max(1, int(seconds))}", f"-timeout={HANG_S}", f"-max_len={MOST_BYTES}"]
    limits += ["-rss_limit_mb=4096", f"-seed={seed}", f"-artifact_prefix={finds}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(corpus), *limits], one, custom_mutator=damage)
    atheris.Fuzz()


def run_alone(name: str, seconds: float, options: argparse.Namespace, *, guided: bool) -> bool:
    """Run one target in a process of its own; return whether it kept its promises."""
    command = [sys.executable, __file__, "--alone", name, "--minutes", str(seconds / 60)]
    command += ["--seed", str(options.seed), "--finds", str(options.finds), *([] if guided else ["--random"])]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    lines = done.stderr.splitlines()
    if guided:
        stats = [line.removeprefix("stat::") for line in lines if line.startswith("stat::number_of_executed_units")]
        print(
            f"{name}: {' '.join(' '.join(stats).split()) or 'no statistics'}, exit status {done.returncode}", flush=True
        )
    if done.returncode:
        print("\n".join(f"  {line}"[:300] for line in lines[-25:]), flush=True)
    return done.returncode == 0


def main() -> None:
    """Run all targets, or some, one after the other; they share the time."""
    from tests.fuzz.targets import NAMES

    parser = argparse.ArgumentParser(description="Damage models' files, and see that every reader copes with them.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--target", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 31), help="(default: drawn)")
    parser.add_argument("--finds", type=Path, help="where to put what broke a promise (default: a temporary folder)")
    parser.add_argument("--random", action="store_true", help="do without atheris")
    parser.add_argument("--alone", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    guided = not options.random and importlib.util.find_spec("atheris") is not None
    if options.alone:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        if guided:
            run_guided(options.alone, 60 * options.minutes, options.seed, options.finds)
        raise SystemExit(run_random(options.alone, 60 * options.minutes, options.seed, options.finds) > 0)
    options.finds = options.finds or Path(tempfile.mkdtemp(prefix="unicorn-finds-"))
    options.finds.mkdir(parents=True, exist_ok=True)
    print(f"{'atheris' if guided else 'random damage'}, seed {options.seed}; finds go to {options.finds}", flush=True)
    share = 60 * options.minutes / len(options.target)
    kept = [run_alone(name, share, options, guided=guided) for name in options.target]
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
