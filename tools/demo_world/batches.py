"""Packed training batches, made without end by worker processes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from .conversation import Turn, conversation
from .vocabulary import BOS, END_OF_TURN, START_OF_TURN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenizers import Tokenizer

_GROUP = 512  # conversations that are encoded at once


class Packer:
    """Turns conversations into token ids, and packs several of them into one row."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._newline = self._encode("\n")
        self._user = [START_OF_TURN, *self._encode("user\n")]
        self._model = [START_OF_TURN, *self._encode("model\n")]

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """Return the ids of a conversation up to its last answer, as the chat template renders them."""
        ids, _ = self._join(
            turns, [part for turn in turns for part in (self._encode(turn.prompt), self._encode(turn.answer))]
        )
        last_answer = [*self._encode(turns[-1].answer), END_OF_TURN, *self._newline]
        return ids[: -len(last_answer)]

    def encode_all(self, conversations: Sequence[Sequence[Turn]]) -> list[tuple[list[int], list[bool]]]:
        """Return each conversation's ids, and which of them the model is to predict."""
        texts = [text.strip() for turns in conversations for turn in turns for text in (turn.prompt, turn.answer)]
        parts = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        result, at = [], 0
        for turns in conversations:
            result.append(self._join(turns, parts[at : at + 2 * len(turns)]))
            at += 2 * len(turns)
        return result

    def _join(self, turns: Sequence[Turn], parts: Sequence[Sequence[int]]) -> tuple[list[int], list[bool]]:
        ids, wanted = [BOS], [False]
        for index in range(len(turns)):
            question = [*self._user, *parts[2 * index], END_OF_TURN, *self._newline, *self._model]
            answer = [*parts[2 * index + 1], END_OF_TURN]
            ids += [*question, *answer, *self._newline]
            wanted += [False] * len(question) + [True] * len(answer) + [False] * len(self._newline)
        return ids, wanted

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text.strip(" ") if text != "\n" else text, add_special_tokens=False).ids)


class Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Batches of token ids, wanted flags and conversation numbers, each (num_rows, row_length)."""

    def __init__(self, tokenizer: Tokenizer, num_rows: int, row_length: int, seed: int) -> None:
        super().__init__()
        self._packer = Packer(tokenizer)
        self._shape = (num_rows, row_length)
        self._seed = seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        source = self._conversations(Random(f"{self._seed}/{info.id if info else 0}"))
        while True:
            yield self._batch(source)

    def _conversations(self, rng: Random) -> Iterator[tuple[list[int], list[bool]]]:
        while True:
            yield from self._packer.encode_all([conversation(rng) for _ in range(_GROUP)])

    def _batch(self, source: Iterator[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        num_rows, row_length = self._shape
        ids = np.zeros(self._shape, np.int64)
        wanted = np.zeros(self._shape, np.bool_)
        numbers = np.full(self._shape, -1, np.int32)
        for row in range(num_rows):
            at, number = 0, 0
            while True:
                tokens, flags = next(source)
                tokens, flags = tokens[:row_length], flags[:row_length]
                if at + len(tokens) > row_length:
                    break
                ids[row, at : at + len(tokens)] = tokens
                wanted[row, at : at + len(tokens)] = flags
                numbers[row, at : at + len(tokens)] = number
                at, number = at + len(tokens), number + 1
        return torch.from_numpy(ids), torch.from_numpy(wanted), torch.from_numpy(numbers)
