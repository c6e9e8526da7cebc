"""What `unicorn tune` measured, as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import TuningError
from unicorn_async.public_text import printable
from unicorn_async.tune.choices import shaders_digest
from unicorn_async.tune.folder import read_table
from unicorn_async.tune.table import DeviceKey, PlanKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.ops.rows import RowForm
    from unicorn_async.tune.folder import TuningFolder
    from unicorn_async.tune.survey import Findings
    from unicorn_async.tune.table import TuningTable

_HEADS = ("matrix", "weights", "tokens", "rule", "µs", "best", "µs", "gain")
_LEFT = (0, 1, 3, 5)  # columns of text
_FOLLOWS = "MAX_SUBGROUPS"  # from other constants


def tune_lines(info: DeviceInfo, found: Findings) -> list[str]:
    """Return the device, a table of all that was measured, and what it comes to."""
    rows = [
        _row(
            f"{one.matrix} {_shape(measured.product)}",
            measured.product,
            (PlanKey.of(measured.rule), measured.rule_us),
            (PlanKey.of(measured.best), measured.best_us),
        )
        for one, measured in found.products
    ]
    faster = sum(measured.best is not measured.rule for _, measured in found.products)
    better = [one for one in found.forms if one.best is not one.contest.rule]
    lines = [_device(DeviceKey.of(info)), *_table(rows)]
    for one in better:
        where, rule = one.contest, one.contest.rule
        lines.append(_form(f"{where.k} columns", where.tokens, (rule, one.rule_us), (one.best, one.best_us)))
    if found.forms:
        lines.append(f"inputs measured in two forms: {len(found.forms)}, faster not in the rules' one: {len(better)}")
    lines.append(
        f"{len(found.products)} products measured, {faster} of them with a faster kernel than the rules choose"
    )
    return [*lines, f"no time for {found.num_left} more: --seconds gives it"] if found.num_left else lines


def stored_lines(folder: TuningFolder) -> list[str]:
    """Return what the folder's tables hold, each with what keeps it from being used, if anything does."""
    lines = []
    for path in folder.paths():
        try:
            table = read_table(path)
        except TuningError as exc:
            lines += [printable(f"not used: {exc}"), ""]
            continue
        lines += [*_stored(table), str(path), ""]
    return lines[:-1] or [f"nothing was measured yet: {folder.path} has no tables"]


def _stored(table: TuningTable) -> list[str]:
    stale = "" if table.shaders == shaders_digest() else " (not used: measured with the kernels of another version)"
    rows = [
        _row(_shape(one.product), one.product, (one.rule, one.rule_us), (one.choice, one.choice_us))
        for one in table.choices
    ]
    forms = [
        _form(
            f"{one.input.k} columns of {one.input.weights}",
            one.input.tokens,
            (one.rule, one.rule_us),
            (one.choice, one.choice_us),
        )
        for one in table.forms
    ]
    return [printable(line) for line in (f"{_device(table.device)}{stale}", *_table(rows), *forms)]


def _device(device: DeviceKey) -> str:
    return f"{device.name}, {device.driver_name} {device.driver_info}{', SOFTWARE' if device.is_software else ''}"


def _row(matrix: str, product: Product, rule: tuple[PlanKey, float], best: tuple[PlanKey, float]) -> tuple[str, ...]:
    same = rule[0] == best[0]
    return (
        matrix,
        product.weights,
        str(product.tokens),
        _plan(rule[0], product),
        f"{rule[1]:.1f}",
        "" if same else _plan(best[0], product, rule[0]),
        "" if same else f"{best[1]:.1f}",
        "" if same else f"{rule[1] / best[1] - 1:.0%}",
    )


def _form(name: str, tokens: int, rule: tuple[RowForm, float], best: tuple[RowForm, float]) -> str:
    """What a step's products of one input take in either form."""
    ours, theirs = (f"{form.value} {us:.1f} µs" for form, us in (rule, best))
    return f"input of {name}, {tokens} tokens: {ours}, {theirs}: {rule[1] / best[1] - 1:.0%}"


def _plan(plan: PlanKey, product: Product, other: PlanKey | None = None) -> str:
    """A kernel and its constants; beside another plan of the same kernel those that differ."""
    constants = [pair for pair in plan.constants if pair[0] != _FOLLOWS]
    name = plan.kernel.removeprefix("linear_").removesuffix(f"_{product.weights}")
    if other is not None and other.kernel == plan.kernel:
        constants = [pair for pair in constants if pair not in other.constants]
    return " ".join((name, *(f"{key.lower()}={value}" for key, value in constants)))


def _shape(product: Product) -> str:
    return f"{product.n}x{product.k}{' gated' * product.gated}{' blocked' * product.blocked}"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = [_HEADS, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    return [
        "  ".join(
            cell.ljust(width) if column in _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
