"""Why a request ended."""

from __future__ import annotations

from enum import Enum


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
