"""Reads a compute shader's interface out of its SPIR-V.

Source: SPIR-V Specification 1.6, sections 2.3 (module layout) and 3.52 (instructions). Names are only in a module that
was compiled with debug information (`glslc -g -O0`); an optimised module has the same offsets and the same ids.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

_MAGIC = 0x07230203
_DECORATION_SPEC_ID, _DECORATION_BUILTIN, _DECORATION_OFFSET = 1, 11, 35
_BUILTIN_WORKGROUP_SIZE = 25
_MODE_LOCAL_SIZE, _MODE_LOCAL_SIZE_ID = 17, 38
_STORAGE_PUSH_CONSTANT = 9


class ReflectionError(Exception):
    """The module is not SPIR-V, or its interface is outside of what the project's shaders may use."""


@dataclass(frozen=True, slots=True)
class PushMember:
    """One scalar or pointer of the push-constant block; `type` is u64, u32, i32 or f32 and `offset` is in bytes."""

    name: str
    type: str
    offset: int


@dataclass(frozen=True, slots=True)
class SpecConstant:
    """One specialisation constant; `type` is u32, i32, f32 or bool."""

    name: str
    id: int
    type: str
    default: int | float | bool


@dataclass(frozen=True, slots=True)
class Interface:
    """What the host must know of a shader. A `workgroup` size is a number, or the name of a specialisation constant."""

    push: tuple[PushMember, ...]
    constants: tuple[SpecConstant, ...]
    workgroup: tuple[int | str, int | str, int | str]

    @property
    def push_bytes(self) -> int:
        """Size of the push-constant block in bytes, rounded up to 4."""
        return max((m.offset + (8 if m.type == "u64" else 4) for m in self.push), default=0)


@dataclass(slots=True)
class _Module:
    names: dict[int, str] = field(default_factory=dict)
    member_names: dict[tuple[int, int], str] = field(default_factory=dict)
    member_offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    spec_ids: dict[int, int] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)
    structs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    pointees: dict[int, int] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)
    spec_values: dict[int, tuple[int, int]] = field(default_factory=dict)  # id → (type id, word)
    composites: dict[int, tuple[int, ...]] = field(default_factory=dict)
    push_struct_pointer: int | None = None
    workgroup_composite: int | None = None
    local_size: tuple[int, ...] | None = None
    local_size_ids: tuple[int, ...] | None = None


def reflect(spirv: bytes) -> Interface:
    """Read push constants, specialisation constants and workgroup size of a module with names.

    Raises ReflectionError where a name is missing or a type is not one that the host can pack.
    """
    module = _read(spirv)
    constants = _spec_constants(module)
    return Interface(_push_members(module), constants, _workgroup(module, {c.id: c for c in constants}))


def _read(spirv: bytes) -> _Module:
    if len(spirv) < 20 or len(spirv) % 4 or struct.unpack_from("<I", spirv)[0] != _MAGIC:
        raise ReflectionError(f"not a SPIR-V module ({len(spirv)} bytes)")
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    module = _Module()
    position = 5
    while position < len(words):
        count, opcode = words[position] >> 16, words[position] & 0xFFFF
        if count == 0 or position + count > len(words):
            raise ReflectionError(f"instruction at word {position} has length {count} of {len(words) - position}")
        _take(module, opcode, words[position + 1 : position + count])
        position += count
    return module


def _take(module: _Module, opcode: int, args: tuple[int, ...]) -> None:
    match opcode:
        case 5:  # OpName
            module.names[args[0]] = _text(args[1:])
        case 6:  # OpMemberName
            module.member_names[args[0], args[1]] = _text(args[2:])
        case 16 if args[1] == _MODE_LOCAL_SIZE:  # OpExecutionMode
            module.local_size = args[2:5]
        case 331 if args[1] == _MODE_LOCAL_SIZE_ID:  # OpExecutionModeId
            module.local_size_ids = args[2:5]
        case 71 if args[1] == _DECORATION_SPEC_ID:  # OpDecorate
            module.spec_ids[args[0]] = args[2]
        case 71 if args[1:3] == (_DECORATION_BUILTIN, _BUILTIN_WORKGROUP_SIZE):
            module.workgroup_composite = args[0]
        case 72 if args[2] == _DECORATION_OFFSET:  # OpMemberDecorate
            module.member_offsets[args[0], args[1]] = args[3]
        case 20:  # OpTypeBool
            module.types[args[0]] = "bool"
        case 21:  # OpTypeInt
            module.types[args[0]] = f"{'i' if args[2] else 'u'}{args[1]}"
        case 22:  # OpTypeFloat
            module.types[args[0]] = f"f{args[1]}"
        case 30:  # OpTypeStruct
            module.structs[args[0]] = args[1:]
        case 32:  # OpTypePointer
            module.pointees[args[0]] = args[2]
            module.types[args[0]] = "u64"
        case 43 if len(args) == 3:  # OpConstant
            module.constants[args[1]] = args[2]
        case 48 | 49 | 50:  # OpSpecConstantTrue, OpSpecConstantFalse, OpSpecConstant
            value = args[2] if opcode == 50 else int(opcode == 48)
            module.spec_values[args[1]] = (args[0], value)
        case 51:  # OpSpecConstantComposite
            module.composites[args[1]] = args[2:]
        case 59 if args[2] == _STORAGE_PUSH_CONSTANT:  # OpVariable
            module.push_struct_pointer = args[0]
        case _:
            pass


def _text(words: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0", 1)[0].decode()


def _push_members(module: _Module) -> tuple[PushMember, ...]:
    if module.push_struct_pointer is None:
        return ()
    block = module.pointees[module.push_struct_pointer]
    members = []
    for index, type_id in enumerate(module.structs[block]):
        name = module.member_names.get((block, index), "")
        kind = module.types.get(type_id, "?")
        if not name or kind not in ("u64", "u32", "i32", "f32"):
            raise ReflectionError(f"push-constant member {index} ({name!r}): {kind} is not one of u64, u32, i32, f32")
        members.append(PushMember(name, kind, module.member_offsets[block, index]))
    return tuple(members)


def _spec_constants(module: _Module) -> tuple[SpecConstant, ...]:
    found: dict[int, SpecConstant] = {}
    for result, (type_id, word) in module.spec_values.items():
        spec_id, name, kind = module.spec_ids.get(result), module.names.get(result), module.types[type_id]
        if spec_id is None or name is None:  # a workgroup size's twin, or a value derived from constants
            continue
        if kind not in ("u32", "i32", "f32", "bool"):
            raise ReflectionError(f"specialisation constant {name}: type {kind} is not one of u32, i32, f32, bool")
        if spec_id in found:
            raise ReflectionError(f"specialisation constants {found[spec_id].name} and {name} share id {spec_id}")
        found[spec_id] = SpecConstant(name, spec_id, kind, _value(kind, word))
    return tuple(found[key] for key in sorted(found))


def _value(kind: str, word: int) -> int | float | bool:
    if kind == "bool":
        return bool(word)
    if kind == "f32":
        return float(struct.unpack("<f", struct.pack("<I", word))[0])
    return int(struct.unpack("<i", struct.pack("<I", word))[0]) if kind == "i32" else word


def _workgroup(module: _Module, constants: dict[int, SpecConstant]) -> tuple[int | str, int | str, int | str]:
    if module.local_size_ids is not None:
        x, y, z = (_workgroup_size(module, constants, i) for i in module.local_size_ids)
    elif module.workgroup_composite is not None and module.workgroup_composite in module.composites:
        x, y, z = (_workgroup_size(module, constants, i) for i in module.composites[module.workgroup_composite])
    elif module.local_size is not None:
        x, y, z = module.local_size
    else:
        raise ReflectionError("the module has no workgroup size: is it a compute shader?")
    return x, y, z


def _workgroup_size(module: _Module, constants: dict[int, SpecConstant], result: int) -> int | str:
    if result in module.constants:
        return module.constants[result]
    spec_id = module.spec_ids.get(result, -1)
    if spec_id not in constants:
        raise ReflectionError(f"the workgroup size with constant id {spec_id} needs a named constant with that id")
    constant, own_default = constants[spec_id], module.spec_values[result][1]
    if constant.default != own_default:
        raise ReflectionError(
            f"workgroup size {constant.name}: local_size's default is {own_default}, the constant's {constant.default}"
        )
    return constant.name
