"""What decides whether a block on the disk is what a model would compute: the model, and how its cache lies."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from unicorn_async.cache.key import cache_key
from unicorn_async.checkpoint.file_identity import identify_files
from unicorn_async.memory.kv_plan import wanted_context

if TYPE_CHECKING:
    from unicorn_async.cache.writer import Origin
    from unicorn_async.config import EngineConfig
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.plan import LoadPlan

_VERSION = 1  # grows when keys and values, or states, come to lie differently in the cache, or are others
_KEY_DIGITS = 32


def model_key(origin: Origin, plan: LoadPlan, model: ModelSpec, options: EngineConfig) -> str:
    """Return the name of the folder of a model's blocks, in hexadecimal digits; it blocks on the disk.

    Device and driver do not count: keys and values lie alike everywhere, and differ by rounding.

    The files are identified behind the load, and looked at behind that: one that took another's name meanwhile is not
    what the device has.

    Raises:
        CheckpointError: a file of the checkpoint can't be read, or is not the one that was loaded.
    """
    identities = identify_files(origin.checkpoint)
    origin.checkpoint.check_unchanged()
    weights = cache_key(identities, origin.checkpoint, plan, scheme=origin.scheme, lora_digest=origin.lora_digest)
    context = wanted_context(model, options)
    content = {
        "version": _VERSION,
        "weights": weights,
        "kv_dtype": options.kv_dtype.value,
        "block_size": options.block_size,
        "layers": [repr(layer.state) for layer in model.layers],
        "rotary": sorted(repr(rotary.for_context(context)) for rotary, _ in model.rotaries),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
