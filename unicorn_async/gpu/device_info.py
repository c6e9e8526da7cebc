"""What a Vulkan device is and can do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.tuned import Tuned, TunedForms


class DeviceType(Enum):
    """The kind of a device; a software device runs the shaders on the CPU."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"
    VIRTUAL = "virtual"
    SOFTWARE = "software"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class MemoryHeap:
    """One memory heap; `budget` is what this process may use of it in all, `used` what it uses already, in bytes.

    `left` is what of that is used by nobody any more, and is being freed.
    """

    nbytes: int
    device_local: bool
    budget: int
    used: int
    left: int = 0

    @property
    def available_bytes(self) -> int:
        """What may still be allocated, once what is left was freed."""
        return max(0, self.budget - self.used + self.left)


@dataclass(frozen=True, slots=True)
class CooperativeMatrixShape:
    """One product A(m, k) · B(k, n) + C(m, n) of VK_KHR_cooperative_matrix; types are "f16", "f32", "s8", …"""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    scope: str

    @property
    def feature(self) -> str | None:
        """Its name in a shader's `requires`; None where the types don't pair up or the scope is not a subgroup."""
        if self.a != self.b or self.c != self.result or self.scope != "subgroup":
            return None
        return f"cooperative_matrix_{self.a}_{self.result}_{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A physical device's identity, memory, features and limits, as its driver reports them.

    `features` holds the optional features by the names that shaders use in `requires`; `missing` holds what every
    device must have and this one lacks, by Vulkan's names. Sizes are in bytes unless the name says otherwise. `tuned`
    and `forms` are what was measured on the device to be faster than the rules' choice of kernels, and of the forms of
    what these read; nothing until it is read.
    """

    index: int
    name: str
    type: DeviceType
    driver_name: str
    driver_info: str
    driver_version: int
    api_version: tuple[int, int, int]
    vendor_id: int
    device_id: int
    device_uuid: str
    heaps: tuple[MemoryHeap, ...]
    subgroup_size: int
    min_subgroup_size: int
    max_subgroup_size: int
    cooperative_matrix: tuple[CooperativeMatrixShape, ...]
    integer_dot: bool  # 4×8-bit products are accelerated; a device may have the feature without
    rebar: bool  # the CPU can map all of the device's memory
    float16: bool
    int8: bool
    storage16: bool
    storage8: bool
    memory_budget: bool
    external_memory_host: bool
    host_pointer_alignment: int  # of imported host memory; 0 without external_memory_host
    max_shared_memory: int
    max_push_constants: int
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_invocations: int
    max_workgroup_count: tuple[int, int, int]
    max_storage_range: int
    max_allocation: int
    max_allocation_count: int
    timestamp_period_ns: float
    features: frozenset[str]
    missing: tuple[str, ...]
    compute_units: int = 0  # 0: the driver does not say
    tuned: Tuned = field(default_factory=dict, repr=False, compare=False)
    forms: TunedForms = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_software(self) -> bool:
        """Whether the CPU does the device's work."""
        return self.type is DeviceType.SOFTWARE

    @property
    def shares_host_memory(self) -> bool:
        """Whether host heaps are the same memory as the device's own."""
        return self.type is not DeviceType.DISCRETE

    @property
    def available_bytes(self) -> int:
        """What may still be allocated for tensors, over all heaps that may hold them."""
        return sum(h.available_bytes for h in self.heaps if h.device_local or self.shares_host_memory)

    @property
    def memory_bytes(self) -> int:
        """Size of all heaps that may hold tensors."""
        return sum(h.nbytes for h in self.heaps if h.device_local or self.shares_host_memory)

    def lacks(self, requires: Iterable[str]) -> tuple[str, ...]:
        """Return those of `requires`, names as in a shader manifest, that the device does not have."""
        return tuple(name for name in requires if name not in self.features)

    def to_json(self) -> dict[str, object]:
        """Return everything that the driver reports as JSON values."""
        fields = asdict(self)
        del fields["tuned"], fields["forms"]
        fields["type"] = self.type.value
        fields["features"] = sorted(self.features)
        fields["api_version"] = ".".join(map(str, self.api_version))
        fields["software"] = self.is_software
        fields["available_bytes"] = self.available_bytes
        return fields
