"""Write reference logits of prompts of up to 1,200 tokens, of golden models.

    python tools/make_long_golden.py FOLDER [CASE ...]        default: every case with a reference of its own

Needs torch, transformers 5 and, for rwkv7, the package rwkv, and computes in float32 on the CPU. What is in FOLDER is
for `tools/check_families.py` to compare an engine with. Beside random prompts there is one of the same token 300 times,
all of which take the same experts in the first layer.

Of a mixture, tokens are drawn anew until no token is near a tie: what it chooses by is further from the first expert
that it does not take than rounding moves either. So an engine has to take the same experts. What another expert would
change is measured, too: at some tokens the last one of each layer is replaced by the next likeliest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from make_golden import ROUNDING, logits, multiplies, open_model

from tests.golden.cases import CASES
from tests.golden.checkpoints import weights
from tests.golden.long_prompts import LONG_CASES, write_long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

LENGTHS = (1, 7, 64, 300, 1200)
NUM_REPEATED = 300
ROUNDINGS = 4  # how often products are rounded otherwise, to see how far that moves scores
DISTANCE = 6.0  # of a score from a tie, in such movements
MOST_DRAWS = 400
STRIDE = 16  # every so many tokens one takes another expert
TOP_K = torch.topk


class Choices:
    """What `torch.topk` chose of: scores (tokens, experts) and how many, in the order of the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[np.ndarray, int]] = []

    def top_k(self, scores: torch.Tensor, k: int, **options: Any) -> Any:
        """Choose, and note what of."""
        self.calls.append((scores.reshape(-1, scores.shape[-1]).numpy().copy(), k))
        return TOP_K(scores, k, **options)


class OtherExperts:
    """Replaces, in one call of `torch.topk`, the last of what some tokens choose by what they would choose next."""

    def __init__(self, call: int) -> None:
        self._left = call

    def top_k(self, scores: torch.Tensor, k: int, **options: Any) -> Any:
        """Choose."""
        self._left -= 1
        if self._left != -1:
            return TOP_K(scores, k, **options)
        values, indices = TOP_K(scores, k + 1, dim=-1)
        shape, rows = (*scores.shape[:-1], k), slice(STRIDE - 1, None, STRIDE)
        for found in (values, indices):
            flat = found.view(-1, k + 1)
            flat[rows, k - 1] = flat[rows, k]
        return torch.return_types.topk((values[..., :k].reshape(shape), indices[..., :k].reshape(shape)))


@contextmanager
def replaced(top_k: Callable[..., Any]) -> Iterator[None]:
    """Have models choose by another function meanwhile."""
    torch.topk = top_k
    try:
        yield
    finally:
        torch.topk = TOP_K


def choices(model: PreTrainedModel, prompt: list[int]) -> list[tuple[np.ndarray, int]]:
    """Return what a prompt's tokens choose of, in each layer."""
    noted = Choices()
    with replaced(noted.top_k):
        logits(model, [prompt])
    return noted.calls


def movements(model: PreTrainedModel, prompt: list[int]) -> list[float]:
    """Return how far rounding moves the scores of each layer: roots of mean squares."""
    noise = torch.Generator()

    def rounded(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = arguments
        return (x * (1 + ROUNDING * torch.randn(x.shape, generator=noise)), *others)

    right = choices(model, prompt)
    squares = np.zeros(len(right))
    hooks = [module.register_forward_pre_hook(rounded) for module in model.modules() if multiplies(module)]
    try:
        for seed in range(ROUNDINGS):
            noise.manual_seed(seed)
            for layer, (scores, _) in enumerate(choices(model, prompt)):
                known = np.isfinite(scores) & np.isfinite(right[layer][0])  # groups that are left out have none
                squares[layer] += np.median((scores[known] - right[layer][0][known]) ** 2) / ROUNDINGS
    finally:
        for hook in hooks:
            hook.remove()
    return list(squares**0.5)


def ties(model: PreTrainedModel, prompt: list[int], moved: list[float]) -> np.ndarray:
    """Return which tokens (tokens) are near a tie in some layer."""
    near = np.zeros(len(prompt), bool)
    for (scores, k), far in zip(choices(model, prompt), moved, strict=True):
        falling = -np.sort(-scores, axis=1)
        near |= falling[:, k - 1] - falling[:, k] < DISTANCE * far
    return near


def steady_prompt(model: PreTrainedModel, prompt: list[int], draw: Callable[[], int]) -> tuple[list[int], int]:
    """Draw tokens anew until none is near a tie; return the prompt and how many were drawn."""
    moved, count = movements(model, prompt), 0
    for _ in range(MOST_DRAWS):
        near = np.flatnonzero(ties(model, prompt, moved))
        if not len(near):
            return prompt, count
        count += len(near)
        for place in near:
            prompt[place] = draw()
    raise SystemExit(f"{len(prompt)} tokens: still near ties after {MOST_DRAWS} draws")


def repeated_prompt(model: PreTrainedModel, draw: Callable[[], int]) -> list[int]:
    """Return a token again and again, none of which is near a tie."""
    for _ in range(MOST_DRAWS):
        prompt = [draw()] * NUM_REPEATED
        if not ties(model, prompt, movements(model, prompt)).any():
            return prompt
    raise SystemExit(f"no token in {MOST_DRAWS} stays away from ties")


def effects(model: PreTrainedModel, prompt: list[int]) -> np.ndarray:
    """Return how far another expert moves a token's logits, in deviations, for some tokens and all layers."""
    right = logits(model, [prompt])
    found = []
    for layer in range(len(choices(model, prompt))):
        with replaced(OtherExperts(layer).top_k):
            changed = logits(model, [prompt])
        found.append(np.abs(changed - right).max(axis=1)[STRIDE - 1 :: STRIDE])
    return np.concatenate(found) / right.std() if found else np.zeros(0)


def reference_model(name: str, directory: Path) -> Path:
    """Write a case as transformers has to read it; return its directory."""
    config = json.loads((write_long(name, directory, "float32") / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **CASES[name].reference_keys}))
    return directory


def recurrent_logits(name: str, prompts: list[list[int]], directory: Path) -> np.ndarray:
    """Return what the package rwkv computes."""
    import make_golden_rwkv7 as rwkv  # which needs that package

    tensors = {key: torch.from_numpy(value.copy()) for key, value in rwkv.published(weights(CASES[name]))}
    return rwkv.logits(tensors, prompts, directory)


def write_long_reference(name: str, folder: Path) -> None:
    """Write what a case's prompts come to."""
    generator = np.random.Generator(np.random.Philox(key=1200 + len(name)))
    vocab = int(str(CASES[name].text_config["vocab_size"]))

    def draw() -> int:
        return int(generator.integers(3, vocab - 8))

    prompts = [[2, *(draw() for _ in range(length - 1))] for length in LENGTHS]
    num_drawn, moved = 0, np.zeros(0)
    with tempfile.TemporaryDirectory() as directory:
        if name == "rwkv7":
            prompts.append([draw()] * NUM_REPEATED)
            reference = recurrent_logits(name, prompts, Path(directory))
        else:
            model = open_model(reference_model(name, Path(directory)))
            for index, prompt in enumerate(prompts):
                prompts[index], count = steady_prompt(model, prompt, draw)
                num_drawn += count
            prompts.append(repeated_prompt(model, draw))
            reference, moved = logits(model, prompts), effects(model, prompts[3])
    if not np.isfinite(reference).all():
        raise SystemExit(f"{name}: logits are not finite")
    facts: dict[str, float] = {}
    if moved.size:
        facts = {"smallest": float(moved.min()), "twentieth": float(np.quantile(moved, 0.05))}
        facts |= {"median": float(np.median(moved)), "drawn anew": num_drawn}
    print(f"{name}: deviation {reference.std():.3f}", *(f"{key} {value:.3g}" for key, value in facts.items()))
    np.savez_compressed(
        folder / f"{name}.npz",
        tokens=np.array([token for prompt in prompts for token in prompt], np.int32),
        lengths=np.array([len(prompt) for prompt in prompts], np.int32),
        vocabulary=np.arange(vocab),
        logits=reference,
        deviation=np.float64(reference.std()),
        sensitivity=np.array(json.dumps(facts)),
    )


def main() -> None:
    """Write what the command line names."""
    parser = argparse.ArgumentParser(description="Write reference logits of long prompts.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="CASE", help="default: all that have a reference of their own")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or LONG_CASES:
        write_long_reference(name, options.folder)


if __name__ == "__main__":
    main()
