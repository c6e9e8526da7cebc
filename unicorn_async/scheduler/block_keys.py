"""Names of blocks by what they hold: a hash of their tokens and of all before them."""

from __future__ import annotations

import struct
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.scheduler.sequence import Sequence

_KEY_BYTES = 16  # so that nobody finds two texts with one key


def extend_keys(sequence: Sequence, num_blocks: int, block_size: int) -> list[bytes]:
    """Return the keys of a sequence's first blocks, `num_blocks` of them at least; all of their tokens are known."""
    keys = sequence.block_keys
    if len(keys) < num_blocks:
        pack = struct.Struct(f"<{block_size}I").pack
        last = keys[-1] if keys else _salt_key(sequence.cache_salt)
        for start in range(len(keys) * block_size, num_blocks * block_size, block_size):
            tokens = pack(*sequence.token_ids(start, block_size))
            last = blake2b(last + tokens, digest_size=_KEY_BYTES).digest()
            keys.append(last)
    return keys


def number_keys(sequence: Sequence) -> dict[bytes, int]:
    """Return which of a sequence's blocks each of the keys is of that it has."""
    numbers, keys = sequence.block_numbers, sequence.block_keys
    if len(numbers) < len(keys):
        numbers.update(zip(islice(keys, len(numbers), None), range(len(numbers), len(keys)), strict=True))
    return numbers


def _salt_key(salt: str) -> bytes:
    """Return what a salt's first block is hashed behind; no block has it, whatever the salt."""
    return blake2b(salt.encode(), digest_size=_KEY_BYTES, person=b"salt").digest()
