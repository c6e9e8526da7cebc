"""Rows that lie in a file in another order than the model wants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InterleavedHeads:
    """Whole heads of `head_rows` rows of `row_bytes`; row i and row i + head_rows / 2 of a head lie side by side.

    That is (heads, head_rows / 2, 2) in the file, (heads, 2, head_rows / 2) for the model.
    """

    head_rows: int
    row_bytes: int

    @property
    def head_bytes(self) -> int:
        """Bytes of a head."""
        return self.head_rows * self.row_bytes

    def places(self, target: memoryview) -> list[memoryview]:
        """Return the rows of `target`, in the model's order, as the file has them one after the other."""
        half = self.head_rows // 2
        starts = (
            (head + row + part) * self.row_bytes
            for head in range(0, len(target) // self.row_bytes, self.head_rows)
            for row in range(half)
            for part in (0, half)
        )
        return [target[start : start + self.row_bytes] for start in starts]
