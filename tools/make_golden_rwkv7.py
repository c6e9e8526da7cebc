"""Write the reference logits of tests/golden/rwkv7.npz from the package rwkv in float32 on the CPU.

    python tools/make_golden_rwkv7.py

Needs torch and the packages rwkv and transformers (which `make_golden` imports). The model is also run with mistakes
that an engine could make; a reference that one of them would hardly move is refused.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from golden.cases import CASES
from golden.checkpoints import weights
from golden.rwkv7 import published
from make_golden import KEPT_LOGITS, LENGTHS, write_reference
from rwkv.model import RWKV

CASE = CASES["rwkv7"]
Tensors = dict[str, torch.Tensor]


# What becomes of tensors whose names match.
MISTAKES = {
    "no shift in time mixing": (r"att\.x_.", lambda tensor: torch.zeros_like(tensor)),
    "one mix for all": (r"att\.x_.", lambda tensor: torch.full_like(tensor, 0.5)),
    "no shift in channel mixing": (r"ffn\.x_k", lambda tensor: torch.zeros_like(tensor)),
    "no value of the first layer": (r"att\.v0", lambda tensor: torch.full_like(tensor, -100.0)),
    "its value alone": (r"att\.v0", lambda tensor: torch.full_like(tensor, 100.0)),
    "no network of the blend": (r"att\.v1", lambda tensor: torch.zeros_like(tensor)),
    "no network of the decay": (r"att\.w1", lambda tensor: torch.zeros_like(tensor)),
    "no bias of the decay": (r"att\.w0", lambda tensor: torch.zeros_like(tensor)),
    "no decay": (r"att\.w0", lambda tensor: torch.full_like(tensor, -100.0)),
    "no rate": (r"att\.a0", lambda tensor: torch.full_like(tensor, -100.0)),
    "no network of the rate": (r"att\.a1", lambda tensor: torch.zeros_like(tensor)),
    "no network of the gate": (r"att\.g2", lambda tensor: torch.ones_like(tensor) * 0.05),
    "no k_a": (r"att\.k_a", lambda tensor: torch.zeros_like(tensor)),
    "no k_k": (r"att\.k_k", lambda tensor: torch.ones_like(tensor)),
    "no bonus": (r"att\.r_k", lambda tensor: torch.zeros_like(tensor)),
    "heads' bonus swapped": (r"att\.r_k", lambda tensor: tensor.flip(0)),
    "no biases of norms": (r"ln[0-9a-z_]*\.bias", lambda tensor: torch.zeros_like(tensor)),
    "no bias of the heads' norm": (r"ln_x\.bias", lambda tensor: torch.zeros_like(tensor)),
}


def logits(tensors: Tensors, prompts: list[list[int]], directory: Path) -> np.ndarray:
    """Return the logits (tokens of all prompts, vocabulary) in float32."""
    path = directory / "model"
    torch.save(tensors, f"{path}.pth")
    model = RWKV(str(path), "cpu fp32")
    found = []
    for prompt in prompts:
        out, _ = model.forward(prompt, None, full_output=True)
        found.append(out.reshape(len(prompt), -1).numpy())
    return np.concatenate(found)


def main() -> None:
    """Write the reference."""
    tensors = {key: torch.from_numpy(value.copy()) for key, value in published(weights(CASE))}
    generator = np.random.Generator(np.random.Philox(key=len(CASE.name)))
    vocab = int(str(CASE.config["vocab_size"]))
    prompts = [[2, *generator.integers(3, vocab - 8, length - 1).tolist()] for length in LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        reference = logits(tensors, prompts, Path(folder))
        effects = {}
        for label, (pattern, change) in MISTAKES.items():
            changed = {
                name: change(tensor) if re.search(pattern + "$", name) else tensor for name, tensor in tensors.items()
            }
            effects[label] = logits(changed, prompts, Path(folder)) - reference
    kept = np.sort(generator.choice(vocab, KEPT_LOGITS, replace=False))
    write_reference(CASE.name, prompts, reference, effects, kept)


if __name__ == "__main__":
    main()
