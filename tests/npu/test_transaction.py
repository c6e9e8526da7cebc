from __future__ import annotations

import numpy as np
import pytest

from tests.npu import compiler_stream
from tests.npu.builds import dialect_of
from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.geometry import NPU2
from unicorn_async.npu.transaction import (
    Channel,
    Dialect,
    Direction,
    MaskWrite,
    PatchAddress,
    PushTask,
    TransactionWriter,
    Transfer,
    WaitToken,
    WriteDescriptor,
    decode,
    is_linear,
)

SOURCE = Channel(3, Direction.FROM_MEMORY, 1)
SINK = Channel(3, Direction.TO_MEMORY, 0)
DIALECT = dialect_of(NPU2)
PLAIN = Dialect(compiler_stream.HEADER, (0, 0, 0x80000000, 0, 0, 1 << 25), ())


def test_a_task_is_written_as_the_compiler_writes_it() -> None:
    writer = TransactionWriter(PLAIN)
    writer.task(SOURCE, [(5, Transfer(1, 0x4000, 8192))])
    writer.wait(SOURCE)
    writer.task(SINK, [(12, Transfer(2, 64, 256))])
    writer.wait(SINK)
    expected = compiler_stream.stream(
        [
            compiler_stream.block_write(3, 5, 8192),
            compiler_stream.patch(3, 5, 1, 0x4000),
            compiler_stream.push(3, 0x1D21C, 5),
            compiler_stream.wait(3, 1, 1),
            compiler_stream.block_write(3, 12, 256),
            compiler_stream.patch(3, 12, 2, 64),
            compiler_stream.push(3, 0x1D204, 12),
            compiler_stream.wait(3, 0, 0),
        ]
    )
    assert writer.words().tolist() == expected
    assert writer.nbytes == 4 * len(expected)


def test_a_chain_of_descriptors_is_one_task() -> None:
    writer = TransactionWriter(DIALECT)
    writer.task(SOURCE, [(index, Transfer(0, 8192 * index, 8192)) for index in (3, 4, 5)])
    header, operations = decode(writer.words())
    assert header == DIALECT.header
    assert [type(operation) for operation in operations] == [
        *[MaskWrite] * 32,
        *[WriteDescriptor, PatchAddress] * 3,
        PushTask,
    ]
    written = [operation for operation in operations if isinstance(operation, WriteDescriptor)]
    assert [operation.next_index for operation in written] == [4, 5, None]
    assert [operation.nbytes for operation in written] == [8192] * 3
    assert operations[-1] == PushTask(SOURCE, 3, token=True)


def test_what_is_written_is_read_back() -> None:
    writer = TransactionWriter(DIALECT)
    for column in range(8):
        for direction in Direction:
            for index in (0, 1):
                channel = Channel(column, direction, index)
                writer.task(channel, [(15 - column, Transfer(2, 4 * column, 4))])
                writer.wait(channel)
    _, operations = decode(writer.words())
    pushed = [operation.channel for operation in operations if isinstance(operation, PushTask)]
    waited = [operation.channel for operation in operations if isinstance(operation, WaitToken)]
    assert pushed == waited and len(set(pushed)) == 32
    assert PatchAddress(7, 8, 2, 28) in operations


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "header"),
        ([1, 2, 0, 15], "header that says 16 bytes"),
        (compiler_stream.stream([[77, 0, 0, 0]]), "word 4: expected a known operation"),
        (compiler_stream.stream([[1, 0, 0x1D000, 20, 0]]), "word 4: expected a known operation"),
        (compiler_stream.stream([[0, 0, 0x1234, 0, 0, 24]]), "0x1234, which is no task queue"),
        (compiler_stream.stream([[0x81, 48, 0, 0, 0, 0, 0x1D010, 0, 0, 0, 0, 0]]), "no descriptor"),
        (compiler_stream.stream([compiler_stream.wait(0, 0, 0)])[:-1], "header"),
        ([*compiler_stream.HEADER, 2, 32, *compiler_stream.wait(0, 0, 0)], "expected 2 operations, got 1"),
        ([*compiler_stream.HEADER, 1, 24, 0x80, 16], "word 4: expected a known operation"),
    ],
)
def test_a_stream_that_is_none_is_refused(words: list[int], wanted: str) -> None:
    with pytest.raises(NpuBuildError, match=wanted):
        decode(np.array(words, np.uint32))


def test_descriptors_with_strides_packets_or_successors_are_not_linear() -> None:
    linear = (0, 0, 0x80000000, 0, 0, 1 << 25)
    assert is_linear(linear)
    for place, word in ((0, 1 << 30), (1, 1), (2, 1 << 20), (3, 5), (4, 1), (5, 1 << 25 | 1 << 26), (5, 0)):
        assert not is_linear((*linear[:place], word, *linear[place + 1 :]))
