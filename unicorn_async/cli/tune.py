"""`unicorn tune MODEL`: which kernels are fastest for a model's matrices on a device, measured and kept."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from unicorn_async.cli.options import MODEL_HELP, count
from unicorn_async.cli.progress import ProgressLine, bar
from unicorn_async.cli.tune_report import stored_lines, tune_lines
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.user_folders import tuning_folder
from unicorn_async.errors import ConfigError, TuningError
from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.resources import resource_dir
from unicorn_async.tune.choices import check_table, shaders_digest
from unicorn_async.tune.contests import contests_of
from unicorn_async.tune.products import products_of
from unicorn_async.tune.survey import survey
from unicorn_async.tune.table import DeviceKey, PlanKey, TunedForm, TunedProduct, TuningTable
from unicorn_async.tune.tuner import Tuner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tune.contests import Contest
    from unicorn_async.tune.folder import TuningFolder
    from unicorn_async.tune.products import ModelProduct
    from unicorn_async.tune.survey import Findings

_MAX_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--show", action="store_true", help="print what was measured on all devices")
    actions.add_argument("--clear", action="store_true", help="remove what was measured on all devices")
    parser.add_argument(
        "--seconds", type=_seconds, default=20.0, metavar="S", help="begin no measurement after so long (default 20)"
    )
    parser.add_argument("--device", metavar="DEVICE", help="index or part of the name (see `unicorn devices`)")
    parser.add_argument(
        "--weights",
        choices=[scheme.value for scheme in WeightScheme],
        default=WeightScheme.AUTO.value,
        help="what weights become while they are loaded (default auto: what they are)",
    )
    parser.add_argument(
        "--max-num-seqs", type=count, default=32, metavar="N", help="sequences in one step (default 32)"
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=count, default=512, metavar="N", help="tokens in one step (default 512)"
    )
    parser.add_argument("--validation", action="store_true", help="switch on Vulkan's validation layers")


def run(options: argparse.Namespace) -> int:
    """Measure, or show or remove what was measured; prints a table."""
    folder = tuning_folder()
    if options.clear:
        print(f"removed {folder.clear()} tables from {folder.path}")
        return 0
    if options.show:
        print("\n".join(stored_lines(folder)))
        return 0
    if options.model is None:
        raise ConfigError("tune: give a MODEL to measure for, --show or --clear")
    on_disk = ModelFiles.read(options.model, WeightScheme(options.weights))
    config = EngineConfig(max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens)
    with Instance.create(validation=options.validation) as instance:
        info = select_device(instance.devices(), options.device, needed_bytes=on_disk.plan.dest_bytes)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
            find_matrix_fragments(device)
            given = device.info, on_disk.config, on_disk.plan, config
            found = _measure(device, products_of(*given), contests_of(*given), options.seconds)
            path = folder.write(device.info, _table(folder, device.info, found))
    print("\n".join([*tune_lines(info, found), f"kept in {path}"]))
    return 0


def _measure(device: Device, products: Sequence[ModelProduct], contests: Sequence[Contest], seconds: float) -> Findings:
    others = (one for contest in contests for way in contest.ways.values() for one in way)
    with ProgressLine() as line, Tuner(device, [one.product for one in (*products, *others)]) as tuner:

        def progress(done: float, one: ModelProduct) -> None:
            size = f"{one.product.n}x{one.product.k}"
            line.update(f"{bar(done)} {one.matrix} {size}, {one.product.tokens} tokens")

        return survey(tuner, products, contests, seconds=seconds, progress=progress)


def _table(folder: TuningFolder, info: DeviceInfo, found: Findings) -> TuningTable:
    """What was known of the device, where it still counts, with what was measured now in its place."""
    try:
        old = folder.find(info)
        if old is not None:
            check_table(old, info)
    except TuningError:
        old = None  # it would not be used either
    settled = {read for one in found.forms for read in one.contest.inputs}
    forms = tuple(
        TunedForm(read, one.contest.rule, one.best, one.rule_us, one.best_us)
        for one in found.forms
        if one.best is not one.contest.rule
        for read in sorted(one.contest.inputs)
    )
    anew = {one.product for _, one in found.products}
    choices = tuple(
        TunedProduct(one.product, PlanKey.of(one.rule), PlanKey.of(one.best), one.rule_us, one.best_us)
        for _, one in found.products
        if one.best is not one.rule
    )
    if old is not None:
        before, now = ({one.input: one.choice for one in some} for some in (old.forms, forms))
        changed = {read for read in settled if before.get(read) is not now.get(read)}  # candidates of these are others
        kept = (one for one in old.choices if one.product not in anew and one.product.input not in changed)
        choices = (*kept, *choices)
        forms = (*(one for one in old.forms if one.input not in settled), *forms)
    return TuningTable(DeviceKey.of(info), shaders_digest(), choices, forms)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"expected seconds, at most {_MAX_SECONDS:.0f}, got {text!r}")
    return value
