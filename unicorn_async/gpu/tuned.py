"""Other ways to launch kernels on one device than the rules choose, where these were measured to be faster there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Constants: TypeAlias = "tuple[tuple[str, int | bool], ...]"


class Work(NamedTuple):
    """What the rules would launch: the manifest's entry, those constants that a choice depends on, and its sizes."""

    entry: str
    constants: Constants
    sizes: tuple[int, ...]


class Launch(NamedTuple):
    """What to launch in its place: an entry that reads and writes the same, and how it is cut."""

    entry: str
    constants: Constants
    grid: tuple[int, int, int]
    subgroup_size: int | None


class Input(NamedTuple):
    """What products read: the type of the weights that it is multiplied with, and its tokens and columns."""

    weights: str
    tokens: int
    k: int


Tuned: TypeAlias = "Mapping[Work, Launch]"
TunedForms: TypeAlias = "Mapping[Input, str]"  # names of forms in which rows of activations lie
