"""Takes the names of users out of a report: what it says of a machine has paths, and a home's path has its owner's."""

from __future__ import annotations

import os
import re
from typing import Any

_HOMES = re.compile(r"/(home|Users)/[^/\s,;:'\")]+")
_END = r"(?![\w.-])"  # of a part of a path


def without_user_names(value: Any) -> Any:
    """Return a report's value with this user's home as ~, and with … for the owner of any other."""
    if isinstance(value, dict):
        return {key: without_user_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_user_names(item) for item in value]
    return _without_user_names(value) if isinstance(value, str) else value


def _without_user_names(text: str) -> str:
    home = os.path.expanduser("~")
    for folder in sorted({home, os.path.realpath(home)}, key=len, reverse=True):
        if folder.count("/") and folder != "/":
            text = re.sub(re.escape(folder) + _END, "~", text)
    text = _HOMES.sub(r"/\1/…", text)
    owner = os.path.basename(home)  # also the name of other folders of theirs, on another disk for example
    return re.sub(f"/{re.escape(owner)}{_END}", "/…", text) if owner not in ("", "~", "root") else text
