"""What becomes of a table of measured choices when a device is opened: the choices that fit are used, others are not.

A table that is damaged or was measured with other shaders is ignored as a whole, a choice that is none of the
candidates, or was measured against another rule than today's, alone. A line in the log tells of either. Forms come
first, since a product's candidates are those that read its form.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import TuningError, UnicornError
from unicorn_async.gpu.manifest import manifest_digest
from unicorn_async.ops.linear_plans.candidates import choice, others
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.rules import forms_of, plan_linear
from unicorn_async.public_text import printable
from unicorn_async.resources import resource_dir
from unicorn_async.tune.table import DeviceKey, PlanKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.tuned import Launch, Work
    from unicorn_async.tune.folder import TuningFolder
    from unicorn_async.tune.table import TunedForm, TunedProduct, TuningTable

_log = logging.getLogger(__name__)


def use_tuning(device: Device, folder: TuningFolder) -> None:
    """Give an open device what was measured for it, if that fits; it blocks on the disk, for a small file."""
    try:
        table = folder.find(device.info)
        if table is None:
            return
        check_table(table, device.info)
    except TuningError as exc:
        _log.warning("tuning: %s; ignored, `unicorn tune MODEL` measures anew", printable(str(exc)))
        return
    info = with_forms(device.info, table.forms)
    found = [fitting(info, one) for one in table.choices]
    tuned = dict(one for one in found if one is not None)
    num_choices = len(found) + len(table.forms)
    if num_unknown := num_choices - len(found) + found.count(None) - len(info.forms):
        _log.warning(
            "tuning: %s: %d of %d choices are not among the candidates of this version; ignored,"
            " `unicorn tune MODEL` measures anew",
            folder.path_of(device.info),
            num_unknown,
            num_choices,
        )
    device.info = replace(info, tuned=tuned)


def with_forms(info: DeviceInfo, forms: Iterable[TunedForm]) -> DeviceInfo:
    """Return the device's description with those forms that can be used (any more), and no others."""
    plain = replace(info, forms={})
    return replace(info, forms={one.input: one.choice.value for one in forms if _is_choice(plain, one)})


def _is_choice(info: DeviceInfo, one: TunedForm) -> bool:
    rule, *others = forms_of(info, Product(one.input.weights, one.input.tokens, 1, one.input.k))
    return one.rule is rule and one.choice in others


def check_table(table: TuningTable, info: DeviceInfo) -> None:
    """Check that a table is for a device, its driver, and the shaders of this installation.

    Raises:
        TuningError: it is not.
    """
    ours = DeviceKey.of(info)
    if table.device != ours:
        raise TuningError(
            f"measured on {table.device.name}, {table.device.driver_name} {table.device.driver_info}, "
            f"this is {ours.name}, {ours.driver_name} {ours.driver_info}"
        )
    if table.shaders != shaders_digest():
        raise TuningError(f"measured on {ours.name} with the kernels of another version")


def shaders_digest() -> str:
    """Return what tells the installation's compiled shaders from those of another version."""
    return manifest_digest(resource_dir("shaders"))


def fitting(info: DeviceInfo, one: TunedProduct) -> tuple[Work, Launch] | None:
    """Return the entry of the device's `tuned` that a choice asks for; None for one that can't be used (any more)."""
    try:
        rule = plan_linear(info, one.product)
        if PlanKey.of(rule) != one.rule or one.choice == one.rule:
            return None
        plans = others(info, one.product, rule)
        wanted = one.choice.kernel, one.choice.constants
        plan = next((plan for plan in plans if (plan.entry, plan.constants) == wanted), None)
    except (UnicornError, ValueError):
        return None
    return None if plan is None else choice(info, one.product, plan)
