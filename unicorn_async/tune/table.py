"""What was measured on one device with one driver, as it is kept in a file.

A table is input like any other file: parsing checks the form of everything in it, and `tuning` checks what it chooses
against the lists of candidates before anything is launched.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.strict_json import parse_object
from unicorn_async.errors import CheckpointError, TuningError
from unicorn_async.gpu.tuned import Input
from unicorn_async.ops.linear_plans.product import WEIGHTS, Product
from unicorn_async.ops.rows import RowForm

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.plan import LinearPlan

TABLE_FORMAT = 3
MAX_CHOICES = 1024
_MAX_SIZE = 1 << 31
_MAX_ID = 1 << 32
_MAX_TEXT = 300
_MAX_CONSTANTS = 16
_MAX_US = 1e12


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """The device and driver that a table is for."""

    name: str
    uuid: str
    vendor_id: int
    device_id: int
    driver_name: str
    driver_info: str
    driver_version: int
    is_software: bool

    @classmethod
    def of(cls, info: DeviceInfo) -> DeviceKey:
        """Name a device and its driver."""
        ids = (info.name, info.device_uuid, info.vendor_id, info.device_id)
        return cls(*ids, info.driver_name, info.driver_info, info.driver_version, info.is_software)


@dataclass(frozen=True, slots=True)
class PlanKey:
    """A plan by its kernel and the constants that cut the product."""

    kernel: str
    constants: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, plan: LinearPlan) -> PlanKey:
        """Name a plan."""
        return cls(plan.entry, tuple((name, int(value)) for name, value in plan.constants))


@dataclass(frozen=True, slots=True)
class TunedProduct:
    """One choice: what the rules chose when it was measured, what was faster, and microseconds that both took."""

    product: Product
    rule: PlanKey
    choice: PlanKey
    rule_us: float
    choice_us: float


@dataclass(frozen=True, slots=True)
class TunedForm:
    """A form of an input that was faster than the rules', with microseconds of all products of a step that read it."""

    input: Input
    rule: RowForm
    choice: RowForm
    rule_us: float
    choice_us: float


@dataclass(frozen=True, slots=True)
class TuningTable:
    """All choices for a device and driver; they are good for one version of the compiled shaders alone.

    Choices of products that read one of the `forms` were made among plans that read it.
    """

    device: DeviceKey
    shaders: str
    choices: tuple[TunedProduct, ...]
    forms: tuple[TunedForm, ...] = ()

    def to_json(self) -> bytes:
        """Return what `parse_table` reads."""
        values = {
            "format": TABLE_FORMAT,
            "device": asdict(self.device),
            "shaders": self.shaders,
            "forms": [
                {
                    **one.input._asdict(),
                    "rule": one.rule.value,
                    "choice": one.choice.value,
                    "rule_us": one.rule_us,
                    "choice_us": one.choice_us,
                }
                for one in self.forms
            ],
            "choices": [
                {
                    **one.product._asdict(),
                    "rule": {"kernel": one.rule.kernel, "constants": dict(one.rule.constants)},
                    "choice": {"kernel": one.choice.kernel, "constants": dict(one.choice.constants)},
                    "rule_us": one.rule_us,
                    "choice_us": one.choice_us,
                }
                for one in self.choices
            ],
        }
        return json.dumps(values, indent=1).encode()


def parse_table(data: bytes, source: str) -> TuningTable:
    """Return the table that a file holds; `source` names the file in errors.

    Raises:
        TuningError: it holds none.
    """
    try:
        values = parse_object(data, source)
        if _whole(values, "format", 0) != TABLE_FORMAT:
            raise TuningError(f"{source}: format {values['format']}, this version reads {TABLE_FORMAT}")
        forms, choices = _list(values, "forms"), _list(values, "choices")
        device, shaders = _device(values.get("device")), _text(values, "shaders")
        return TuningTable(device, shaders, tuple(map(_choice, choices)), tuple(map(_form, forms)))
    except CheckpointError as exc:
        raise TuningError(str(exc)) from exc
    except _FormError as exc:
        raise TuningError(f"{source}: {exc}") from exc


class _FormError(Exception):
    """A value does not have the form that it should have."""


def _wrong(key: str, expected: str) -> _FormError:
    return _FormError(f"{key}: expected {expected}")


def _device(value: object) -> DeviceKey:
    record = _record(value, "device")
    return DeviceKey(
        name=_text(record, "name"),
        uuid=_text(record, "uuid"),
        vendor_id=_whole(record, "vendor_id", 0, _MAX_ID),
        device_id=_whole(record, "device_id", 0, _MAX_ID),
        driver_name=_text(record, "driver_name"),
        driver_info=_text(record, "driver_info"),
        driver_version=_whole(record, "driver_version", 0, _MAX_ID),
        is_software=_flag(record, "is_software"),
    )


def _form(value: object) -> TunedForm:
    record = _record(value, "forms")
    read = Input(_weights(record), *(_whole(record, key, 1) for key in ("tokens", "k")))
    rule, choice = (_row_form(record, key) for key in ("rule", "choice"))
    return TunedForm(read, rule, choice, _time(record, "rule_us"), _time(record, "choice_us"))


def _row_form(record: dict[str, object], key: str) -> RowForm:
    names = [form.value for form in RowForm]
    if (name := _text(record, key)) not in names:
        raise _wrong(key, f"one of {', '.join(names)}")
    return RowForm(name)


def _choice(value: object) -> TunedProduct:
    record = _record(value, "choices")
    weights = _weights(record)
    tokens, n, k = (_whole(record, key, 1) for key in ("tokens", "n", "k"))
    product = Product(weights, tokens, n, k, gated=_flag(record, "gated"), blocked=_flag(record, "blocked"))
    rule, choice = (_plan(record.get(key), key) for key in ("rule", "choice"))
    return TunedProduct(product, rule, choice, _time(record, "rule_us"), _time(record, "choice_us"))


def _plan(value: object, key: str) -> PlanKey:
    record = _record(value, key)
    constants = _record(record.get("constants"), "constants")
    if len(constants) > _MAX_CONSTANTS:
        raise _wrong("constants", f"at most {_MAX_CONSTANTS}")
    return PlanKey(_text(record, "kernel"), tuple((name, _whole(constants, name, 0)) for name in constants))


def _weights(record: dict[str, object]) -> str:
    if (weights := _text(record, "weights")) not in WEIGHTS:
        raise _wrong("weights", f"one of {', '.join(WEIGHTS)}")
    return weights


def _list(record: dict[str, object], key: str) -> list[object]:
    value = record.get(key)
    if not isinstance(value, list) or len(value) > MAX_CHOICES:
        raise _wrong(key, f"a list of at most {MAX_CHOICES}")
    return value


def _record(value: object, key: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(key, "an object")
    return value


def _whole(record: dict[str, object], key: str, low: int, high: int = _MAX_SIZE) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _wrong(key[:_MAX_TEXT], f"a whole number, {low} to {high}")
    return value


def _time(record: dict[str, object], key: str) -> float:
    value = record.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _MAX_US:
        raise _wrong(key, "microseconds")
    return float(value)


def _flag(record: dict[str, object], key: str) -> bool:
    value = record.get(key)
    if not isinstance(value, bool):
        raise _wrong(key, "true or false")
    return value


def _text(record: dict[str, object], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise _wrong(key, f"a string of at most {_MAX_TEXT} characters")
    return value
