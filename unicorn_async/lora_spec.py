"""Which LoRA adapters are wanted, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unicorn_async.converted import Converted, path_of
from unicorn_async.errors import ConfigError
from unicorn_async.number_kinds import is_number

# An adapter's files, as PEFT names them.
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_TENSORS_FILE = "adapter_model.safetensors"
MAX_LORA_WEIGHT = 1000.0  # magnitude
MAX_LORAS = 32


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """A LoRA adapter to blend into the weights, and how much of it: `weight` multiplies its own scale."""

    path: Converted[Path, str] = Converted()  # its directory, or its name in the Hugging Face cache
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> LoraSpec:
        """Parse DIR or DIR=WEIGHT, where a name in the Hugging Face cache may stand for the directory.

        Raises:
            ConfigError: the weight is no moderate number.
        """
        name, separator, weight = text.rpartition("=")
        if not separator or Path(text).expanduser().is_dir():
            return cls(text)
        try:
            return cls(name, float(weight))
        except (ValueError, ConfigError) as exc:
            raise ConfigError(f"expected DIR or DIR=WEIGHT with a number, got {text!r}") from exc

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", path_of("adapter", self.path))
        if not is_number(self.weight, -MAX_LORA_WEIGHT, MAX_LORA_WEIGHT):
            raise ConfigError(f"adapter {self.path}: weight: expected a number of at most 1000, got {self.weight!r}")


def lora_specs(values: object) -> tuple[LoraSpec, ...]:
    """Return the adapters that an option has, however each of them is given.

    Raises:
        ConfigError: one of them is none, or there are too many.
    """
    if not isinstance(values, tuple) or not all(isinstance(value, LoraSpec | Path | str) for value in values):
        raise ConfigError(f"loras: expected a tuple of LoraSpec, paths or texts DIR=WEIGHT, got {values!r}")
    if len(values) > MAX_LORAS:
        raise ConfigError(f"loras: expected at most {MAX_LORAS} adapters, got {len(values)}")
    try:
        specs = (LoraSpec.parse(value) if isinstance(value, str) else value for value in values)
        return tuple(LoraSpec(spec) if isinstance(spec, Path) else spec for spec in specs)
    except ConfigError as exc:
        raise ConfigError(f"loras: {exc}") from exc
