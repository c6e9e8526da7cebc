"""Write the reference logits in tests/golden from transformers in float32 on the CPU.

    python tools/make_golden.py                 all cases, then those with LoRA adapters, then the demo model
    python tools/make_golden.py gemma3 llama    these cases alone
    python tools/make_golden.py llama_lora      a case with adapters merged into its weights
    python tools/make_golden.py demo            the demo model alone

Needs torch and transformers 5. Each case is also run with mistakes that an engine could make (a window one key too
short, a rotary scaling left out, …); the tool refuses to write a reference that a mistake would hardly move, because a
comparison with it would prove nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
DEMO = ROOT / "unicorn_async" / "demo" / "model"
sys.path.insert(0, str(ROOT / "tests"))

from golden.adapters import BLENDS, AdapterCase, write_adapter  # noqa: E402
from golden.cases import CASES, Layout  # noqa: E402
from golden.checkpoints import golden, write_checkpoint  # noqa: E402
from golden_mistakes import CONFIG_MISTAKES, MODEL_MISTAKES  # noqa: E402

LENGTHS = (1, 7, 64, 300)
KEPT_LOGITS = 64
SMALLEST_EFFECT = 0.1  # standard deviations; the engine may be wrong by 0.01 in f16
AMONG_IMAGES = ("mistral4",)  # text models that transformers opens as those of images
ROUNDINGS = 8  # how often a mixture is rounded otherwise, to see which of its routes depend on it
ROUNDING = 2**-11  # relative deviation of what products read: what f16 does to it
LARGEST_ROUNDED = 0.008  # standard deviations; a token that takes another expert moves logits by more
DEMO_NEW_TOKENS = 64
DEMO_SMALLEST_MARGIN = 0.25  # between the two likeliest tokens: closer ones may change places in f16
ADA = (("user", "My name is Ada."), ("model", "Nice to meet you, Ada!"))
DEMO_PROMPTS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "What is 17 + 25?"),),
    (("user", "Hello! Who are you?"),),
    (("user", "Count from 3 to 30."),),
    (*ADA, ("user", "Do you remember my name?")),
    (*ADA, ("user", "Count from 40 to 65.")),
    (("user", "What is 17 + 25?"), ("model", "17 + 25 = 42."), ("user", "Now add 5.")),
    (("user", "Spell the word elephant."),),
    (("user", "Who wrote Hamlet?"),),
    (("user", "What can you do?"),),
)


def open_model(directory: Path, *, multimodal: bool = False) -> PreTrainedModel:
    """Open a checkpoint in float32 with plain attention; refuse one whose tensors do not all fit."""
    kind = json.loads((directory / "config.json").read_text())["model_type"]
    is_among_images = multimodal or kind in AMONG_IMAGES
    family: Any = AutoModelForImageTextToText if is_among_images else AutoModelForCausalLM
    model: PreTrainedModel
    model, report = family.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[problem]:
            raise SystemExit(f"{directory}: {problem}: {sorted(report[problem])[:4]}")
    model.eval()
    return model


def logits(model: PreTrainedModel, prompts: list[list[int]]) -> np.ndarray:
    """Return the logits (tokens of all prompts, vocabulary) in float32."""
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([prompt])).logits[0].numpy() for prompt in prompts])


def steady_prompts(model: PreTrainedModel, generator: np.random.Generator, vocab: int) -> list[list[int]]:
    """Draw prompts; of a mixture each until no token of it is at a tie between experts, as far as rounding goes."""
    is_mixture = any(".experts." in name for name, _ in model.named_parameters())
    prompts = []
    for length in LENGTHS:
        while True:
            prompt = [2, *generator.integers(3, vocab - 8, length - 1).tolist()]
            if not is_mixture or is_steady(model, prompt):
                break
        prompts.append(prompt)
    return prompts


def is_steady(model: PreTrainedModel, prompt: list[int]) -> bool:
    """Whether logits stay near where what all products read is rounded otherwise."""
    noise = torch.Generator()

    def rounded(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = arguments
        return (x * (1 + ROUNDING * torch.randn(x.shape, generator=noise)), *others)

    right = logits(model, [prompt])
    hooks = [module.register_forward_pre_hook(rounded) for module in model.modules() if multiplies(module)]
    try:
        for seed in range(ROUNDINGS):
            noise.manual_seed(seed)
            if np.abs(logits(model, [prompt]) - right).max() > LARGEST_ROUNDED * right.std():
                return False
    finally:
        for hook in hooks:
            hook.remove()
    return True


def multiplies(module: torch.nn.Module) -> bool:
    """Whether a module multiplies what it gets by matrices of its own."""
    own = module.parameters(recurse=False)
    return not isinstance(module, torch.nn.Embedding) and any(weights.ndim > 1 for weights in own)


def write_case(name: str, directory: Path) -> None:
    """Compute one case's reference and the effect of each mistake, and write both."""
    case = CASES[name]
    generator = np.random.Generator(np.random.Philox(key=len(name)))
    vocab = int(str(case.text_config["vocab_size"]))
    write_checkpoint(name, directory, "float32")
    right = {**case.config, **case.reference_keys}
    (directory / "config.json").write_text(json.dumps(right))
    model = open_model(directory)
    prompts = steady_prompts(model, generator, vocab)
    reference = logits(model, prompts)
    sensitivity = {}
    for label, change_config in CONFIG_MISTAKES[name].items():
        config = json.loads(json.dumps(right))
        change_config(config)
        (directory / "config.json").write_text(json.dumps(config))
        sensitivity[label] = logits(open_model(directory), prompts) - reference
    (directory / "config.json").write_text(json.dumps(right))
    for label, change_model in MODEL_MISTAKES[name].items():
        model = open_model(directory)
        change_model(model)
        sensitivity[label] = logits(model, prompts) - reference
    kept = np.sort(generator.choice(vocab, KEPT_LOGITS, replace=False))
    write_reference(name, prompts, reference, sensitivity, kept)


def write_reference(
    name: str, prompts: list[list[int]], reference: np.ndarray, sensitivity: dict[str, np.ndarray], kept: np.ndarray
) -> None:
    """Write the kept tokens' logits and each mistake's effect; refuse a reference that one of them hardly moves."""
    deviation = float(reference.std())
    effects = {label: float(np.abs(delta).max()) / deviation for label, delta in sensitivity.items()}
    print(f"{name}: deviation {deviation:.3f}, " + ", ".join(f"{k}: {v:.2f}" for k, v in effects.items()))
    weak = {label: effect for label, effect in effects.items() if not effect >= SMALLEST_EFFECT}
    if weak or not np.isfinite(reference).all():
        raise SystemExit(f"{name}: not finite, or not sensitive enough to {weak}")
    np.savez_compressed(
        GOLDEN / f"{name}.npz",
        tokens=np.array([token for prompt in prompts for token in prompt], np.int32),
        lengths=np.array(LENGTHS, np.int32),
        vocabulary=kept,
        logits=reference[:, kept],
        deviation=np.float64(deviation),
        sensitivity=np.array(json.dumps(effects)),
    )


BLEND_MISTAKES: dict[str, dict[str, Callable[[AdapterCase], AdapterCase | None]]] = {
    "llama": {
        "no first adapter": lambda adapter: None if adapter.name == "first" else adapter,
        "no second adapter": lambda adapter: None if adapter.name == "second" else adapter,
        "alpha over rank for rsLoRA": lambda adapter: replace(adapter, rslora=False),
        "no weights": lambda adapter: replace(adapter, weight=1.0),
        "no embeddings": lambda adapter: replace(adapter, targets=tuple(t for t in adapter.targets if t[0] != "e")),
        "no head": lambda adapter: replace(adapter, targets=tuple(t for t in adapter.targets if t != "lm_head")),
    },
    "gemma3": {
        "no adapter": lambda adapter: None,
        "no alpha of its own": lambda adapter: replace(adapter, alphas={}),
        "alpha over the common rank": lambda adapter: replace(adapter, alphas={**adapter.alphas, "v_proj": 24.0}),
    },
}


def merged_model(name: str, directory: Path, change: Callable[[AdapterCase], AdapterCase | None]) -> PreTrainedModel:
    """Open a case with its adapters merged into its weights in float32, after a change to each; None leaves one out."""
    model = open_model(directory / "base")
    for adapter in BLENDS[name]:
        changed = change(adapter)
        if changed is None:
            continue
        tensors = load_file(write_adapter(name, adapter, directory / adapter.name) / "adapter_model.safetensors")
        for key in sorted(key for key in tensors if "_A" in key):
            module = key.removeprefix(adapter.prefix).split(".lora_", 1)[0]
            if (part := module.rsplit(".", 1)[-1]) not in changed.targets:
                continue
            a, b = tensors[key].float(), tensors[key.replace("_A", "_B")].float()
            product = changed.scale_of(part) * (b @ a)
            model.get_parameter(f"{module}.weight").data += product.T if "embedding" in key else product
    return model


def write_blend(name: str, directory: Path) -> None:
    """Compute the reference of a case with adapters and the effect of each mistake, and write both."""
    reference = golden(name)
    prompts = [list(prompt) for prompt in reference.prompts]
    write_checkpoint(name, directory / "base", "float32")
    right = logits(merged_model(name, directory, lambda adapter: adapter), prompts)
    changes = {
        label: logits(merged_model(name, directory, change), prompts) - right
        for label, change in BLEND_MISTAKES[name].items()
    }
    write_reference(f"{name}_lora", prompts, right, changes, reference.vocabulary)


def check_layouts(text: str, directory: Path) -> None:
    """Check that transformers reads a case's multimodal layouts as the same decoder as the text layout's."""
    prompt = [[2, *range(3, 60)]]
    wanted = logits(open_model(write_checkpoint(text, directory / "text", "float32")), prompt)
    others = [name for name, case in CASES.items() if case.reference == text and case.layout is not Layout.TEXT]
    for name in others:
        model = open_model(write_checkpoint(name, directory / name, "float32"), multimodal=True)
        difference = float(np.abs(logits(model, prompt) - wanted).max())
        print(f"{name}: differs from the text layout by {difference:.1e}")
        if difference > 1e-5:
            raise SystemExit(f"{name}: is not the decoder of {text}")


def write_demo() -> None:
    """Write the demo model's token ids, prompt logits and greedy continuation for a few conversations."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = open_model(DEMO)
    arrays: dict[str, Any] = {}
    texts = []
    for index, turns in enumerate(DEMO_PROMPTS):
        messages = [{"role": "assistant" if role == "model" else role, "content": text} for role, text in turns]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        answer, margins = greedy(model, ids)
        arrays[f"prompt_{index}"] = np.array(ids, np.int32)
        arrays[f"logits_{index}"] = logits(model, [ids])[-4:]
        arrays[f"answer_{index}"] = np.array(answer, np.int32)
        arrays[f"margins_{index}"] = np.array(margins, np.float32)
        end = next((i for i, token in enumerate(answer) if token in model.generation_config.eos_token_id), None)
        texts.append({"messages": messages, "answer": tokenizer.decode(answer[:end])})
        print(f"demo: {turns[-1][1]!r} → {texts[-1]['answer']!r}, smallest margin {min(margins):.3f}")
        if min(margins) < DEMO_SMALLEST_MARGIN:
            raise SystemExit(f"demo: {turns[-1][1]!r}: the two likeliest tokens are closer than {DEMO_SMALLEST_MARGIN}")
    digest = hashlib.sha256((DEMO / "model.safetensors").read_bytes()).hexdigest()
    np.savez_compressed(
        GOLDEN / "demo.npz", sha256=np.array(digest), conversations=np.array(json.dumps(texts)), **arrays
    )


def greedy(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Return the 64 likeliest tokens one after the other, past end tokens too, and each one's lead over the second."""
    ids, margins = list(prompt), []
    with torch.no_grad():
        for _ in range(DEMO_NEW_TOKENS):
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            ids.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
    return ids[len(prompt) :], margins


def main() -> None:
    """Write what the command line names, or everything."""
    parser = argparse.ArgumentParser(description="Write tests/golden from transformers in float32.")
    parser.add_argument("names", nargs="*", metavar="CASE", help="a case, or demo; default: everything")
    names = parser.parse_args().names or [*CONFIG_MISTAKES, *(f"{name}_lora" for name in BLENDS), "demo"]
    for name in names:
        if name == "demo":
            write_demo()
            continue
        with tempfile.TemporaryDirectory() as directory:
            if name.endswith("_lora"):
                write_blend(name.removesuffix("_lora"), Path(directory))
                continue
            write_case(name, Path(directory))
            check_layouts(name, Path(directory))


if __name__ == "__main__":
    main()
