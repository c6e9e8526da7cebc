"""axe-core, which finds what keeps people with assistive technology out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Page

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: cd web && npm ci")


async def violations(page: Page) -> list[str]:
    """Return what axe finds on the page as it is: the rule, and where it is broken."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
