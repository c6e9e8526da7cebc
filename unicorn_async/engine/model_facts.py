"""What can be known of a model by its headers alone, read once for each state of its files."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.split import part_paths
from unicorn_async.checkpoint.location import find_model
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.placement import empty_devices, plans_on
from unicorn_async.errors import DeviceError, UnicornError
from unicorn_async.weights.chunk import Transform

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo

# Name, size in bytes and time of the last change of each file that a model is made of.
_State: TypeAlias = "tuple[tuple[str, int, int], ...]"

MAX_KEPT = 1024  # models
DEVICES_AGAIN_S = 10.0  # after which devices that could not be used are asked for again


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model on disk; what is None can't be told.

    `weight_types` are the types of its weights in the files, the one with most bytes first. `fits` says whether a
    device would have room if nothing else were on it, as the server would load the model by itself. `problem` is why
    the model can't be loaded so.
    """

    file_bytes: int
    format: str  # "safetensors" or "gguf"
    weight_types: tuple[str, ...] = ()
    is_quantised: bool | None = None
    num_parameters: int | None = None
    num_layers: int | None = None
    max_context: int | None = None
    architecture: str | None = None
    fits: bool | None = None
    problem: str | None = None


class FactsReader:
    """Reads the facts of models, and keeps them for as long as size and time of their files stay the same.

    It is for several threads, one of which reads at a time. Which devices there are is asked once, and again after a
    while where none could be used.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, EngineConfig], tuple[_State, float, ModelFacts]] = OrderedDict()
        self._devices: tuple[DeviceInfo, ...] | None = None
        self._turn = threading.Lock()

    def kept(self, model: str | Path, config: EngineConfig) -> ModelFacts | None:
        """Return what is known of a model without reading it, None where it has to be read first.

        Raises:
            UnicornError, OSError: its files can't be looked at.
        """
        path = find_model(model)
        with self._turn:
            found = self._kept.get((path, config))
        if found is None or found[0] != _state(path) or found[1] < time.monotonic():
            return None
        return found[2]

    def read(self, model: str | Path, config: EngineConfig) -> ModelFacts:
        """Read the headers of a model, to be loaded by such options; it blocks on the disk, and reads no weights.

        Raises:
            UnicornError, OSError: its files can't be looked at; what is wrong inside of them is the facts' `problem`.
        """
        path = find_model(model)
        state = _state(path)
        with self._turn:
            facts, holds_s = self._facts(path, state, config)
            self._kept[path, config] = (state, time.monotonic() + holds_s, facts)
            self._kept.move_to_end((path, config))
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return facts

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return this machine's devices, with nothing on them; raises as `empty_devices`."""
        if self._devices is None:
            self._devices = empty_devices()
        return self._devices

    def _facts(self, path: Path, state: _State, config: EngineConfig) -> tuple[ModelFacts, float]:
        """Return the facts, and for how many seconds they hold while the files stay the same."""
        file_bytes, kind = sum(nbytes for _, nbytes, _ in state), "safetensors" if path.is_dir() else "gguf"
        try:
            files = ModelFiles.read(path, config.weights, config.loras, is_default=True, predicts=config.predicts)
        except (UnicornError, OSError) as exc:
            return ModelFacts(file_bytes, kind, problem=str(exc)), inf
        fits, problem, holds_s = None, None, inf
        try:
            plans = plans_on(self.devices(), files, replace(config, weights=files.scheme))
        except DeviceError as exc:
            problem, holds_s = str(exc), DEVICES_AGAIN_S
            self._devices = None
        except UnicornError as exc:
            problem = str(exc)
        else:
            fits = any(plan.plan is not None for plan in plans)
            problem = None if fits else "\n".join(plan.problem or "" for plan in plans)
        by_type: Counter[str] = Counter()
        for chunk in files.plan.chunks:
            is_relaid = chunk.transform is Transform.RELAYOUT
            by_type[(chunk.dest_dtype if is_relaid else chunk.source_dtype).value] += chunk.read_bytes
        facts = ModelFacts(
            sum(stamp.nbytes for stamp in files.checkpoint.stamps),
            kind,
            tuple(name for name, _ in by_type.most_common()),
            files.checkpoint.is_quantised,
            sum(prod(dest.shape) for dest in files.plan.destinations if not dest.is_order),
            files.config.num_layers,
            files.config.max_position,
            files.config.architecture,
            fits,
            problem,
        )
        return facts, holds_s


def _state(path: Path) -> _State:
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix in (".json", ".safetensors")]
    else:
        files = list(part_paths(path))
    found = ((file.name, file.stat()) for file in sorted(files))
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
