"""How long tests wait for what has to come, on a machine of which any step may take seconds."""

from __future__ import annotations

PATIENCE_S = 120.0
