"""axe, which finds what keeps people with assistive technology out."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Page

needs_axe = pytest.mark.skipif(
    find_spec("axe_playwright_python") is None, reason="axe-playwright-python is not installed"
)


async def violations(page: Page) -> list[str]:
    """Return what axe finds on the page as it is: the rule, and where it is broken."""
    from axe_playwright_python.async_playwright import Axe

    results = await Axe().run(page)
    return [
        f"{rule['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for rule in results.response["violations"]
        for node in rule["nodes"]
    ]
