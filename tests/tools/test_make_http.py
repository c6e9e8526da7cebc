"""The reference of HTTP is what a server describes of itself."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import make_http


def test_the_page_is_what_the_descriptions_say() -> None:
    assert make_http.PAGE.read_text(encoding="utf-8") == make_http.page(), "run python tools/make_http.py"


def test_each_field_of_each_body_is_there() -> None:
    page = make_http.page()
    for name, schema in make_http.schemas().items():
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        fields = schema["properties"]
        assert isinstance(fields, dict)
        assert [field for field in fields if f"| `{field}`" not in section] == []
