"""A draft model's files, checked against the model that it drafts for, and what it is opened with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_SPECULATING, AttentionTarget, EngineConfig, SpeculationMode, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError, OutOfMemoryError, TokenizerError
from unicorn_async.memory.kv_plan import kv_cache_bytes
from unicorn_async.memory.plan import plan_memory
from unicorn_async.tokenizer.files import MAX_MODEL_BYTES

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tokenizer.worker import Source

_MOST_CONTEXT = 16384  # tokens of all sequences that are drafted for together, unless one alone has more asked for
_MOST_BATCHED = 256  # tokens of a prompt by which a draft model catches up in one step
_STAGING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """A draft model on disk, and the options that it is opened with."""

    model: str | Path
    files: ModelFiles
    options: EngineConfig

    @classmethod
    def read(cls, target: ModelFiles, options: EngineConfig) -> DraftFiles | None:
        """Read and check the draft model that the options ask for, if they do; blocks on the disk.

        Whether anything can be proposed to the target was looked at before.

        Raises:
            ConfigError, CheckpointError, TokenizerError, UnsupportedModelError: there is no such model, or it can't
                draft.
        """
        if options.draft is None:
            return None
        files = ModelFiles.read(options.draft)
        check_vocabularies(files, target)
        return cls(options.draft, files, _draft_options(files, target, options))

    @property
    def max_context(self) -> int:
        """Tokens of the longest sequence that it drafts for."""
        return self.options.max_context or self.files.config.max_position

    def nbytes(self, info: DeviceInfo) -> int:
        """Return the memory that it needs on a device at most, in bytes.

        Raises:
            OutOfMemoryError: it would not even fit alone, or would have no states to go back to behind wrong tokens.
        """
        try:
            plan = plan_memory(
                self.files.config, self.options, self.files.plan, emptied(info), staging=self.files.staging
            )
        except OutOfMemoryError as exc:
            raise OutOfMemoryError(f"draft {self.files.name}: {exc}") from exc
        if not plan.states.can_go_back:
            raise OutOfMemoryError(f"draft {self.files.name}: {plan.states.spare_text(predicts=False)}")
        return plan.placement.total_bytes + plan.step_bytes + max(plan.staged_bytes, self.options.staging_bytes)


def emptied(info: DeviceInfo) -> DeviceInfo:
    """Return a device as it is with nothing on it: what a draft takes is left free by the plan of its target.

    What the driver said of it may be of a time in which a server's last model was still there.
    """
    return replace(info, heaps=tuple(replace(heap, used=0) for heap in info.heaps))


def check_vocabularies(draft: ModelFiles, target: ModelFiles) -> None:
    """Check that two models' tokens are the same, but for some at the end that one of them alone may have.

    Sizes of one family often differ so: Gemma 3 27B has 64 tokens for images that the small ones have not, and files
    have their vocabularies padded to different lengths.

    Raises:
        ConfigError: they are not; the message says where.
    """
    own, wanted = token_texts(draft.tokenizer_source), token_texts(target.tokenizer_source)
    shared = own.keys() & wanted.keys()
    last = max(shared, default=-1)
    wrong = [token for token in shared if own[token] != wanted[token]]
    wrong += [token for token in own.keys() ^ wanted.keys() if token < last]
    if shared and not wrong:
        return
    where = min(wrong, default=0)
    raise ConfigError(
        f"draft {draft.name}: its vocabulary is not that of {target.name}: {len(own)} tokens and {len(wanted)};"
        f" token {where} is {own.get(where)!r} and {wanted.get(where)!r}"
    )


def token_texts(source: Source) -> dict[int, str]:
    """Return each token's text as a tokenizer's file has it.

    Raises:
        TokenizerError: it can't be read.
    """
    if isinstance(source, Path):
        return _texts_of_json(source / "tokenizer.json")
    tokens = source.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):  # of a large vocabulary no list
        raise TokenizerError("tokenizer.ggml.tokens: expected a list of texts")
    return dict(enumerate(map(str, tokens)))


def _texts_of_json(path: Path) -> dict[int, str]:
    try:
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise TokenizerError(f"{path}: {path.stat().st_size} bytes, at most {MAX_MODEL_BYTES} are allowed")
        found = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = found["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram's: pieces with scores
            texts = {token: str(piece[0]) for token, piece in enumerate(vocabulary)}
        else:
            texts = {int(token): text for text, token in vocabulary.items()}
        return texts | {int(token["id"]): str(token["content"]) for token in found.get("added_tokens") or ()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise TokenizerError(f"{path}: its vocabulary can't be read ({type(exc).__name__}: {exc})") from exc


def _draft_options(files: ModelFiles, target: ModelFiles, options: EngineConfig) -> EngineConfig:
    """Return what it is opened with: room for those few sequences that anything is proposed to."""
    wanted = min(options.max_context or target.config.max_position, files.config.max_position)
    context = wanted if options.max_context else min(wanted, _MOST_CONTEXT)
    seqs = min(MAX_SPECULATING, options.max_seqs)
    plain = EngineConfig()
    own = replace(
        options,
        draft=None,
        model_name=None,
        max_context=context,
        max_num_seqs=seqs,
        max_num_batched_tokens=min(options.max_num_batched_tokens, _MOST_BATCHED),
        num_load_steps=1,
        kv_cache_bytes=None,
        weights=WeightScheme.AUTO,
        loras=(),
        staging_bytes=min(options.staging_bytes, _STAGING_BYTES),
        skip_tokenizer=True,
        speculation=SpeculationMode.LOOKUP,  # its steps have several tokens of a sequence, too
        pooling=plain.pooling,
        attention=AttentionTarget(),
        load_trace=None,
        time_kernels=False,
        kv_host_bytes=None,
        kv_disk_bytes=None,
        prefix_cache=options.prefix_cache and not files.config.has_fixed_state,  # no copies of states are kept
    )
    if not files.config.attends:
        return replace(own, kv_dtype=plain.kv_dtype)
    tokens = min(seqs * context, max(context, _MOST_CONTEXT))
    tokens = -(-tokens // own.block_size) * own.block_size
    return replace(own, kv_cache_bytes=kv_cache_bytes(files.config, own, tokens))
