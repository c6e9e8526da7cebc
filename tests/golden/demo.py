"""What transformers answers, in float32 and greedily, with the bundled demo model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_FILE = Path(__file__).resolve().parent / "demo.npz"


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """One conversation with the demo model."""

    messages: tuple[Mapping[str, str], ...]  # role and content of each, the user's last
    prompt: tuple[int, ...]  # the messages' token ids, up to where the model's turn begins
    logits: NDArray[np.float32]  # of the prompt's last 4 tokens: (4, vocabulary)
    continuation: tuple[int, ...]  # the 64 likeliest tokens one after the other, past end tokens too
    margins: NDArray[np.float32]  # (64): by how much each one's logit exceeds the second's
    text: str  # the answer up to its end token


def demo_answers() -> tuple[DemoAnswer, ...]:
    """Load every conversation."""
    with np.load(_FILE) as file:
        return tuple(
            DemoAnswer(
                messages=tuple(conversation["messages"]),
                prompt=tuple(int(token) for token in file[f"prompt_{index}"]),
                logits=file[f"logits_{index}"],
                continuation=tuple(int(token) for token in file[f"answer_{index}"]),
                margins=file[f"margins_{index}"],
                text=conversation["answer"],
            )
            for index, conversation in enumerate(json.loads(str(file["conversations"])))
        )


def demo_weights_sha256() -> str:
    """Return the digest of the model.safetensors that the answers are of."""
    with np.load(_FILE) as file:
        return str(file["sha256"])
