"""A model's files, checked, before anything is opened or allocated for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unicorn_async.cache.lookup import look_up
from unicorn_async.cache.writer import Origin
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.location import find_model, model_name
from unicorn_async.checkpoint.names import PREDICTOR
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES
from unicorn_async.checkpoint.pooler import read_pooler
from unicorn_async.checkpoint.recommended_sampling import recommended_sampling
from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.loader.lora_factors import lora_bytes, scratch_bytes
from unicorn_async.loader.read_facts import read_facts
from unicorn_async.loader.read_strategy import choose_read_strategy, download_strategy
from unicorn_async.loader.staging_plan import StagingNeed
from unicorn_async.lora.adapter import lora_digest, read_adapters
from unicorn_async.lora.plan import make_lora_plan
from unicorn_async.models.registry import model_spec
from unicorn_async.pooling import Pooler, Pooling
from unicorn_async.weights.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.cache.lookup import CacheLookup
    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.lora.plan import LoraPlan
    from unicorn_async.lora_spec import LoraSpec
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.models.spec import Layer, ModelSpec
    from unicorn_async.tokenizer import Tokenizer
    from unicorn_async.tokenizer.worker import Source
    from unicorn_async.weights.plan import LoadPlan


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files, checked, and what is to be loaded of them.

    `predictor_left_out` says why a layer that predicts a token more is not loaded, of which there is something, or "".
    """

    name: str
    checkpoint: Checkpoint
    config: ModelSpec
    plan: LoadPlan
    lora: LoraPlan
    scheme: WeightScheme = WeightScheme.AUTO
    sampling: Mapping[str, float] = field(default_factory=dict)  # recommended, by the names of `SamplingParams`
    pooler: Pooler = field(default_factory=Pooler)  # of embeddings
    predictor_left_out: str = ""

    @classmethod
    def read(
        cls,
        model: str | Path,
        scheme: WeightScheme = WeightScheme.AUTO,
        loras: Sequence[LoraSpec] = (),
        *,
        is_default: bool = False,
        pooling: Pooling | None = None,
        predicts: bool = False,
        no_predictor: str = "",
        download: ModelDownload | None = None,
    ) -> ModelFiles:
        """Find and check a model, to be loaded by a scheme with adapters; it blocks on the disk, and reads no weights.

        A scheme that is a default alone gives way to AUTO where weights are quantised already. `pooling` goes before
        what the files say of it. If it `predicts`, a layer that predicts a token more is loaded as well,
        where it is there as a whole; `no_predictor` is why not, if that is to be said where there is one. Of a model
        that is on its way, by a `download`, headers are waited for.

        Raises:
            ConfigError, CheckpointError: there is no such model, or it can't be used.
            DownloadError: it does not come.
        """
        path = find_model(model) if download is None else download.path
        checkpoint = Checkpoint.read(path, model_spec, NO_PARTIAL_FILES if download is None else download.files)
        if is_default and checkpoint.is_quantised:
            scheme = WeightScheme.AUTO
        config = model_spec(checkpoint.config, checkpoint.config_name, checkpoint.traits)
        _check_layers(checkpoint, config)
        left_out = ""
        if predicts:
            checkpoint, config, left_out = _with_predictor(checkpoint, config)
        elif no_predictor and _with_predictor(checkpoint, config)[1].predicts:
            left_out = no_predictor
        if loras and not config.attends:
            raise UnsupportedModelError(f"{loras[0].path}: adapters of {config.architecture} are not supported")
        wanted = config.wanted_tensors()
        lora = make_lora_plan(read_adapters(loras), wanted, config.tied_tensors)
        plan = make_plan(checkpoint, wanted, scheme=scheme, adapted=lora.changes)
        config.check_unused(plan.ignored)
        sampling = recommended_sampling(checkpoint.path, checkpoint.gguf_metadata)
        pooler = read_pooler(checkpoint.path, checkpoint.gguf_metadata, pooling)
        return cls(model_name(model, path), checkpoint, config, plan, lora, scheme, sampling, pooler, left_out)

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Check that the embeddings have a row for each of a tokenizer's tokens, but for added ones.

        Those may be beyond the rows, as the image's of Gemma 3's models of text are: they are never sampled, and a
        prompt that has one is refused.

        Raises:
            CheckpointError: they have fewer, or none for a token that begins every text, or for all that end answers.
        """
        rows, facts, without = self.config.vocab_size, tokenizer.facts, self.without_rows(tokenizer)
        num_needed = facts.vocab_size - len(without)
        if num_needed > rows:
            added = f", {num_needed} without added ones beyond" if num_needed < facts.vocab_size else ""
            found = f"the tokenizer has {facts.vocab_size} tokens{added}, the embeddings have {rows} rows"
            raise CheckpointError(f"{self.checkpoint.path}: {found}")
        first = next((token_id for token_id in facts.prefix if token_id >= rows), None)
        if first is not None:
            found = f"token {first} ({tokenizer.token_text(first)!r}) begins every text"
            raise CheckpointError(f"{self.checkpoint.path}: {found}, the embeddings have {rows} rows")
        if (ends := facts.eos_token_ids) and set(ends) <= set(without):
            names = ", ".join(f"{token_id} ({tokenizer.token_text(token_id)!r})" for token_id in ends)
            found = f"only token {names} ends answers"
            raise CheckpointError(f"{self.checkpoint.path}: {found}, the embeddings have {rows} rows")

    def without_rows(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the ids of a tokenizer's added tokens for which the embeddings have no row."""
        return tuple(token_id for token_id in tokenizer.facts.added_ids if token_id >= self.config.vocab_size)

    @property
    def lora_digest(self) -> str:
        """What the adapters make of the weights, as a digest; "" without adapters."""
        return lora_digest(self.lora.adapters)

    @property
    def origin(self) -> Origin:
        """What the weights are made of, for the description of an entry in the weight cache."""
        return Origin(self.name, self.checkpoint, self.scheme, self.lora_digest)

    def look_up(self, folder: CacheFolder | None) -> CacheLookup:
        """Look for what a load would make in the weight cache; it blocks on the disk. Without a folder it is off."""
        return look_up(folder, self.checkpoint, self.plan, scheme=self.scheme, lora_digest=self.lora_digest)

    @property
    def tokenizer_source(self) -> Source:
        """What the model's tokenizer is made from."""
        metadata = self.checkpoint.gguf_metadata
        return self.checkpoint.path if metadata is None else metadata

    @property
    def transient_bytes(self) -> int:
        """Device memory that adapters take while the model loads, in bytes."""
        return lora_bytes(self.lora, scratch_bytes(self.plan)) if self.lora.adapters else 0

    @property
    def staging(self) -> StagingNeed:
        """What staging memory the load needs; adapters come through a ring of their own."""
        return StagingNeed.of([self.plan, *([self.lora.factors] if self.lora.adapters else [])])

    def read_strategy(
        self,
        device: DeviceInfo,
        num_threads: int | None = None,
        *,
        memory: MemoryPlan | None = None,
        found: CacheLookup | None = None,
    ) -> ReadStrategy:
        """Choose how to read the files for a device, by the memory that is free now; it blocks on the disk.

        What is planned in `memory` leaves the page cache less room where the device shares the host's. What was
        `found` in the cache is read in place of the checkpoint's files.
        """
        planned = self.plan.dest_bytes if memory is None else memory.placement.total_bytes
        host_bytes = planned if device.shares_host_memory else 0
        files, file_bytes = self.checkpoint.files, self.plan.bytes_to_read
        if found is not None and found.file is not None:
            files, file_bytes = (found.file,), found.status.nbytes
        elif self.checkpoint.partial:
            return download_strategy(len(os.sched_getaffinity(0)), num_threads=num_threads)
        facts = read_facts(files, file_bytes=file_bytes, host_bytes=host_bytes)
        return choose_read_strategy(facts, num_threads=num_threads)


def _with_predictor(checkpoint: Checkpoint, config: ModelSpec) -> tuple[Checkpoint, ModelSpec, str]:
    """Return both with the layer that predicts a token more if the checkpoint has all of it, and else why not."""
    tensors = {**checkpoint.tensors, **checkpoint.predictor}
    for form in config.predictors:
        names = {form.on_disk(weight.name) for weight in form.weights}
        if names <= tensors.keys():
            found = {name: tensors[name] for name in names}
            return replace(checkpoint, tensors={**checkpoint.tensors, **found}), config.predicting(form), ""
    return checkpoint, config, _why_left_out(checkpoint, config.predictors, tensors.keys())


def _why_left_out(checkpoint: Checkpoint, forms: Sequence[Layer], there: Collection[str]) -> str:
    """Say what of a predictor of these forms, none of which is whole, is not `there`; "" if nothing is."""
    if not forms:
        return ""
    known = checkpoint.predictor
    unread = [name for name in checkpoint.skipped if name.startswith(PREDICTOR) and name not in known]
    if unread:
        return f"{len(unread)} of its tensors are not in F32, F16 or BF16, first {unread[0]!r}"
    names = [[form.on_disk(weight.name) for weight in form.weights] for form in forms]
    if not any(name in there for form in names for name in form):
        return ""
    missing = min(([name for name in form if name not in there] for form in names), key=len)
    return f"{len(missing)} of its tensors are missing, first {missing[0]!r}"


def _check_layers(checkpoint: Checkpoint, config: ModelSpec) -> None:
    """Before a list is made of what the layers need, whose length the configuration alone would decide on."""
    if config.num_layers > len(checkpoint.tensors):
        raise CheckpointError(
            f"{checkpoint.path}: {checkpoint.config_name} has {config.num_layers} layers, "
            f"but there are {len(checkpoint.tensors)} tensors"
        )
