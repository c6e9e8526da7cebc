from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from spirv_reflect import PushMember, ReflectionError, SpecConstant, reflect


def op(opcode: int, *args: int) -> bytes:
    return struct.pack(f"<{len(args) + 1}I", (len(args) + 1) << 16 | opcode, *args)


def text(value: str) -> list[int]:
    data = value.encode() + b"\0" * (4 - len(value) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def module(*instructions: bytes) -> bytes:
    return struct.pack("<5I", 0x07230203, 0x00010600, 0, 100, 0) + b"".join(instructions)


UINT, FLOAT, BLOCK, POINTER, STRUCT_POINTER = 1, 2, 3, 4, 5
TYPES = (op(21, UINT, 32, 0), op(22, FLOAT, 32), op(32, POINTER, 5349, UINT), op(30, BLOCK, POINTER, UINT, FLOAT))
NAMES = (op(6, BLOCK, 0, *text("weight")), op(6, BLOCK, 1, *text("n")), op(6, BLOCK, 2, *text("cap")))
OFFSETS = (op(72, BLOCK, 0, 35, 0), op(72, BLOCK, 1, 35, 8), op(72, BLOCK, 2, 35, 12))
PUSH = (op(32, STRUCT_POINTER, 9, BLOCK), op(59, STRUCT_POINTER, 6, 9))
LITERAL_SIZE = op(16, 20, 17, 64, 2, 1)


def test_push_constants_have_names_types_and_offsets() -> None:
    interface = reflect(module(LITERAL_SIZE, *NAMES, *OFFSETS, *TYPES, *PUSH))
    assert interface.push == (PushMember("weight", "u64", 0), PushMember("n", "u32", 8), PushMember("cap", "f32", 12))
    assert interface.push_bytes == 16
    assert interface.workgroup == (64, 2, 1)


def test_specialisation_constants_have_ids_types_and_defaults() -> None:
    interface = reflect(
        module(
            op(331, 20, 38, 10, 11, 11),  # the workgroup size by ids
            op(5, 12, *text("WORKGROUP")),
            op(5, 13, *text("CAP")),
            op(5, 14, *text("HAS_BIAS")),
            *(op(71, result, 1, spec_id) for result, spec_id in ((10, 0), (12, 0), (13, 2), (14, 1))),
            *TYPES,
            op(20, 6),
            op(50, UINT, 10, 32),
            op(43, UINT, 11, 1),
            op(50, UINT, 12, 32),
            op(50, FLOAT, 13, 0x3FC00000),
            op(48, 6, 14),
        )
    )
    assert interface.workgroup == ("WORKGROUP", 1, 1)
    assert interface.constants == (
        SpecConstant("WORKGROUP", 0, "u32", 32),
        SpecConstant("HAS_BIAS", 1, "bool", True),
        SpecConstant("CAP", 2, "f32", 1.5),
    )


def test_a_workgroup_size_whose_name_has_another_default_is_refused() -> None:
    spirv = module(
        op(331, 20, 38, 10, 11, 11),
        op(5, 12, *text("WORKGROUP")),
        op(71, 10, 1, 0),
        op(71, 12, 1, 0),
        op(21, UINT, 32, 0),
        op(50, UINT, 10, 1),
        op(43, UINT, 11, 1),
        op(50, UINT, 12, 32),
    )
    with pytest.raises(ReflectionError, match="WORKGROUP"):
        reflect(spirv)


@pytest.mark.parametrize(
    "spirv", [b"", b"\x03\x02\x23\x07" * 5, module(op(5, 1, 2))[:-4], module(struct.pack("<I", 5))]
)
def test_damaged_modules_are_refused(spirv: bytes) -> None:
    with pytest.raises(ReflectionError):
        reflect(spirv)


def test_a_push_constant_that_the_host_cannot_pack_is_refused() -> None:
    types = (op(22, FLOAT, 32), op(23, POINTER, FLOAT, 4), op(30, BLOCK, POINTER))
    spirv = module(LITERAL_SIZE, op(6, BLOCK, 0, *text("v")), op(72, BLOCK, 0, 35, 0), *types, *PUSH)
    with pytest.raises(ReflectionError, match="'v'"):
        reflect(spirv)
