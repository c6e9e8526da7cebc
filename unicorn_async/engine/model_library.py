"""The models that one server may load: from a name and a few options to an open engine."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from unicorn_async.background import run_to_end
from unicorn_async.engine.user_folders import weight_cache_directory
from unicorn_async.errors import DownloadError, UnicornError
from unicorn_async.lora_spec import LoraSpec
from unicorn_async.public_text import PublicText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unicorn_async.checkpoint.catalog import CatalogEntry, ModelCatalog
    from unicorn_async.checkpoint.coming_model import ComingModel, DownloadCount
    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.config import EngineConfig, WeightScheme
    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.leftovers import Leftovers
    from unicorn_async.engine.model_facts import FactsReader, ModelFacts
    from unicorn_async.engine.placement import DevicePlan
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.loader.progress import LoadProgress


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """A LoRA adapter by its name in the catalog, and how much of it."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What a client asks for; what is None is as the server was started with."""

    name: str
    weights: WeightScheme | None = None
    max_context: int | None = None
    loras: tuple[AdapterChoice, ...] | None = None


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that was found, and the options to open it with; `config.model_name` is the name.

    `unchecked` is the choice of one that nothing was known of yet: `ModelLibrary.open` checks its files.
    """

    name: str
    location: str | Path
    config: EngineConfig
    unchecked: ModelChoice | None = field(default=None, compare=False)


class OnWait(Protocol):
    """Who is told what the opening of a model waits for, see `Engine.open`; for a "download" with how far that is."""

    def __call__(self, what: str, download: LoadProgress | None = None, /) -> None:
        """Take it, at any time while the model is opened."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that may be loaded: `facts` are None as long as nobody has read its files, `problem` says why not."""

    name: str
    facts: ModelFacts | None = None
    problem: str | None = None  # its files can't even be looked at


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """Where a model would lie if it were loaded with these options: the device that a load takes is the last one."""

    name: str
    weights: WeightScheme
    bytes_to_read: int
    devices: tuple[DevicePlan, ...]


class ModelLibrary:
    """Finds, checks and opens the models of a catalog.

    `config` holds the options that a choice leaves open; its adapters and its draft model belong to the model given at
    the start alone, and its `weights` give way to AUTO where a model's are quantised already. Each load replaces the
    file `load_trace`. `on_open` is told of every engine that was opened. The first one takes the instance of `vulkan`.
    What an engine leaves to be freed goes to `leftovers`: the next one does not wait for that. The model given at the
    start may be `coming`, and is loaded as it comes; where that has failed, a load calls `again`, which returns what
    comes now, or None where all is there.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        config: EngineConfig,
        *,
        on_open: Callable[[Engine], None] | None = None,
        vulkan: InstanceStart | None = None,
        leftovers: Leftovers | None = None,
        coming: ComingModel | None = None,
        again: Callable[[], ComingModel | None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._on_open = on_open
        self._vulkan = vulkan
        self._leftovers = leftovers
        self._coming = coming
        self._again = again
        adapters = [(lora.path.parent, "") for lora in config.loras]
        if config.draft is not None and Path(config.draft).exists():
            adapters.append((Path(config.draft).parent, ""))
        self._facts: FactsReader | None = None
        self._public = PublicText([*catalog.places(), *adapters, (weight_cache_directory(), "weight cache")])

    @property
    def can_reopen(self) -> bool:
        """Whether a model whose engine has failed can be opened again."""
        return True

    def given(self) -> PreparedModel | None:
        """Return the model that the server was started with, as it was asked for."""
        entry = self._catalog.given
        return None if entry is None else PreparedModel(entry.name, entry.location, self._named(entry))

    def models(self, time_s: float) -> tuple[ListedModel, ...]:
        """Return what may be loaded; blocks on the disk.

        Files that were not read since they changed are read for about `time_s`; the others' turn comes at later calls.
        """
        entries, reader = self._catalog.entries(), self._reader()
        until = time.monotonic() + time_s  # from here, so that each call gets on
        return tuple(self._listed(entry, reader, until) for entry in entries)

    def adapters(self) -> tuple[str, ...]:
        """Return the names of the LoRA adapters that there are; blocks on the disk."""
        return tuple(self._catalog.adapters())

    def placement(self, choice: ModelChoice) -> PlannedModel:
        """Plan a model as a load would, if nothing else were on the devices; opens nothing, and blocks on the disk.

        Raises:
            ModelNotFoundError, ConfigError, CheckpointError, DownloadError, DeviceError: as `prepare`; but for a model
                that is too large, which is told by the plans. Of one whose download has only begun, DownloadError.
        """
        from unicorn_async.engine.files import ModelFiles  # here, in a thread: a server begins without it
        from unicorn_async.engine.placement import plans_on

        entry, config = self._chosen(choice)
        is_default = choice.weights is None
        files = ModelFiles.read(
            entry.location,
            config.weights,
            config.loras,
            is_default=is_default,
            predicts=config.predicts,
            download=self._download_of(entry.location),
        )
        config = replace(config, weights=files.scheme)
        devices = plans_on(self._reader().devices(), files, config)
        return PlannedModel(entry.name, files.scheme, files.plan.bytes_to_read, tuple(devices))

    def public_text(self, text: str) -> str:
        """Return a text as clients may read it: without the folders that models, adapters and the cache lie in."""
        return self._public.of(text)

    def prepare(self, choice: ModelChoice) -> PreparedModel:
        """Find a model and check its files, and that a device would have room if nothing else were on it; blocks.

        Nothing of that is checked of a model whose download has only begun.

        Raises:
            ModelNotFoundError: the catalog has no such model.
            ConfigError, CheckpointError: an option or an adapter can't work, the files can't be used, or the load's
                trace can't be written.
            DownloadError: it does not come.
            DeviceError: there is no such device, or the model is too large for it.
        """
        entry, config = self._chosen(choice)
        self._come_again(entry.location)
        if self._is_unknown(entry):
            return PreparedModel(entry.name, entry.location, config, choice)
        return self._checked(choice)

    @asynccontextmanager
    async def open(self, model: PreparedModel, on_wait: OnWait) -> AsyncIterator[Engine]:
        """Open an engine for the block's time; `on_wait` and errors are those of `Engine.open`.

        A model that is coming is waited for first, until it can be opened; raises what ends its download, and as
        `prepare` what is wrong with one that could not be checked before.
        """
        engine_class = await run_to_end(_import_engine)
        await self._begun(model.location, on_wait)
        choice = model.unchecked
        if choice is not None:
            model = await run_to_end(lambda: self._checked(choice))
        download = await run_to_end(lambda: self._download_of(model.location))
        async with engine_class.open(
            model.location,
            config=model.config,
            vulkan=self._vulkan,
            leftovers=self._leftovers,
            on_wait=on_wait,
            download=download,
        ) as engine:
            if self._on_open is not None:
                self._on_open(engine)
            yield engine

    async def freed(self) -> None:
        """Wait until the memory of the models that were closed is free again."""
        if self._leftovers is not None:
            await self._leftovers.closed()

    async def _begun(self, location: str | Path, on_wait: OnWait) -> None:
        """Wait until the coming model, if it is that, can be opened or never will be."""
        coming, started = self._coming, time.monotonic()
        if coming is None or location != coming.name:
            return
        from unicorn_async.loader.progress import LoadProgress  # as above

        def tell(count: DownloadCount) -> None:
            seconds = time.monotonic() - started
            on_wait("download", LoadProgress(0, 0, 0, 0, seconds, False, False, *count))

        await coming.begun(tell)

    def _download_of(self, location: str | Path) -> ModelDownload | None:
        """Return what is on its way of a model; its files are left out once all are there. Blocks on the disk.

        Raises:
            UnicornError: what ended the download before the model could be opened; as DownloadError, it has only begun.
        """
        coming = self._coming
        if coming is None or location != coming.name:
            return None
        if not coming.is_begun:  # who checks models has others wait
            raise DownloadError(f"{coming.name}: its download has only begun: nothing is known of the model yet")
        download = coming.wait()
        return None if download is None else download.now()

    def _checked(self, choice: ModelChoice) -> PreparedModel:
        """Return a model with its files checked; raises as `prepare`."""
        from unicorn_async.engine.model_check import checked_options  # here, in a thread: a server begins without it

        entry, config = self._chosen(choice)
        download = self._download_of(entry.location)
        config = checked_options(entry.location, config, is_default=choice.weights is None, download=download)
        return PreparedModel(entry.name, entry.location, config)

    def _come_again(self, location: str | Path) -> None:
        """Have the download of the coming model, if it is that, begin anew where it has failed."""
        coming = self._coming
        if self._again is None or coming is None or location != coming.name or not coming.has_failed:
            return
        self._coming = self._again()

    def _is_unknown(self, entry: CatalogEntry) -> bool:
        """Whether it is the coming model, whose download has only begun."""
        return self._coming is not None and entry.location == self._coming.name and not self._coming.is_begun

    def _reader(self) -> FactsReader:
        from unicorn_async.engine.model_facts import FactsReader  # as above

        self._facts = self._facts or FactsReader()
        return self._facts

    def _listed(self, entry: CatalogEntry, reader: FactsReader, until: float) -> ListedModel:
        config = self._named(entry)
        if self._is_unknown(entry):
            return ListedModel(entry.name)
        try:
            download = self._download_of(entry.location)
            if download is not None and not download.is_settled:
                return ListedModel(entry.name)  # its files can't be looked at, and change all the time
            facts = reader.kept(entry.location, config)
            if facts is None and time.monotonic() < until:
                facts = reader.read(entry.location, config)
        except (UnicornError, OSError) as exc:
            return ListedModel(entry.name, problem=str(exc))
        return ListedModel(entry.name, facts)

    def _chosen(self, choice: ModelChoice) -> tuple[CatalogEntry, EngineConfig]:
        """Find a model, and the options to load it with; raises as `prepare`."""
        entry = self._catalog.find(choice.name)
        config = self._named(entry)
        if choice.weights is not None:
            config = replace(config, weights=choice.weights)
        if choice.max_context is not None:
            config = replace(config, max_context=choice.max_context)
        if choice.loras is not None:
            config = replace(config, loras=tuple(self._adapter(lora) for lora in choice.loras))
        return entry, config

    def _named(self, entry: CatalogEntry) -> EngineConfig:
        is_given = entry == self._catalog.given
        loras, draft = (self._config.loras, self._config.draft) if is_given else ((), None)
        return replace(self._config, model_name=entry.name, loras=loras, draft=draft)

    def _adapter(self, choice: AdapterChoice) -> LoraSpec:
        return LoraSpec(self._catalog.find_adapter(choice.name), choice.weight)


def _import_engine() -> type[Engine]:
    from unicorn_async.engine.engine import Engine

    return Engine
