"""`unicorn npu`: what keeps the NPU from being used, the build of its kernels, and their validation."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBuildError, NpuUnavailableError, UnicornError
from unicorn_async.hybrid.figures import npu_figures
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.doctor import Finding, examine, npu_chip, opening_by_xrt
from unicorn_async.npu.geometry import HEAD_DIMS, HeadLayout
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.manifest import build_dir, find_build, find_built, notice, tried
from unicorn_async.npu.measured import find_rates
from unicorn_async.npu.opening import open_attention
from unicorn_async.npu.packages import version_hint
from unicorn_async.npu.work import AttentionHeads
from unicorn_async.resources import npu_page, resource_dir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from unicorn_async.npu.manifest import Build

_ACTIONS = {
    "doctor": "look for what keeps the NPU from being used, and try the kernels that are built",
    "build": "build the kernels; needs mlir-aie and Peano, but no NPU",
    "validate": "run the kernels on this machine's NPU, compare, measure, and write a report",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    summary = "; ".join(f"{name}: {text}" for name, text in _ACTIONS.items())
    parser.add_argument("action", choices=_ACTIONS, help=summary)
    rest = parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="OPTION", help="of the action: `unicorn npu ACTION --help` lists them"
    )
    rest.required = False  # argparse would ask for it where the action is missing


def run(options: argparse.Namespace) -> int:
    """Run the action; each has options of its own."""
    if options.action != "doctor":
        script = resource_dir("npu") / f"{options.action}.py"
        # -B: an installation keeps no bytecode among the sources that it carries.
        return subprocess.run([sys.executable, "-B", str(script), *options.rest], check=False).returncode
    as_json = _doctor_options(options.rest).json
    findings = diagnose(NpuHost(), build_dir())
    print(
        json.dumps([asdict(finding) for finding in findings], indent=2)
        if as_json
        else f"{format_findings(findings)}\n\n{tried() if all(finding.ok for finding in findings) else notice()}"
    )
    return 0 if all(finding.ok for finding in findings) else 1


def _doctor_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the doctor's options; ends the process where they can't be."""
    summary = _ACTIONS["doctor"]
    parser = argparse.ArgumentParser(prog="unicorn npu doctor", description=f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    return parser.parse_args(arguments)


def diagnose(host: NpuHost, builds: Path) -> list[Finding]:
    """Examine the machine; where all is well, look for builds of the kernels, and try each of them.

    A model needs the kernels of one head_dim: where some are built, the others' absence is a note.
    """
    findings = list(examine(host))
    if all(finding.ok for finding in findings):
        findings.append(opening_by_xrt(host))
    if not all(finding.ok for finding in findings):
        return findings
    chip = npu_chip(host)
    built = find_built(builds, chip)
    for head_dim in HEAD_DIMS:
        check = f"kernels, head_dim {head_dim}"
        try:
            build = find_build(builds, chip, head_dim)
            asyncio.run(_try(host, builds, AttentionHeads(HeadLayout(chip, head_dim), 4, 2, 64)))
        except NpuBuildError as exc:
            remedy = f"unicorn npu build --chip {chip.name} --head-dim {head_dim}"
            if built and head_dim not in built:
                findings.append(Finding(check, True, "not built; models with this head_dim need them", remedy))
            else:
                findings.append(Finding(check, False, str(exc), remedy))
        except NpuUnavailableError as exc:
            findings.append(Finding(check, False, str(exc), version_hint(host)))
        except UnicornError as exc:
            findings.append(Finding(check, False, str(exc), f"{npu_page()} says how to report it"))
        else:
            findings.append(
                Finding(check, True, f"{build.xclbin}, products in {build.products.value}: the known answers are right")
            )
            findings.append(_rates(host, builds, build))
    return findings


def _rates(host: NpuHost, builds: Path, build: Build) -> Finding:
    """Say what `--attention auto` goes by; others' rates are a note."""
    measured = find_rates(builds, build, host.npu_software())
    figures = "; ".join(figure.text() for figure in npu_figures(build.chip, measured, build.products).all())
    remedy = "`unicorn npu validate` measures them; `unicorn inspect MODEL --attention auto` says what they decide"
    return Finding(f"rates, head_dim {build.head_dim}", True, figures, "" if measured else remedy)


async def _try(host: NpuHost, builds: Path, heads: AttentionHeads) -> None:
    """Ask the kernels the known questions, and leave nothing open."""
    async with open_attention(heads, builds=builds, host=host, options=NpuOptions(num_runs=1, items_per_run=64)):
        pass


def format_findings(findings: list[Finding]) -> str:
    """Return a line for each finding, and one with what to do below each that failed or is a note."""
    lines = []
    for finding in findings:
        mark = "FAIL" if not finding.ok else "note" if finding.remedy else "ok  "
        lines.append(f"{mark} {finding.check}: {finding.summary}")
        if finding.remedy:
            lines.append(f"     {finding.remedy}")
    return "\n".join(lines)
