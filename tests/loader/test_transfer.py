"""Small chunks of a layer share a buffer; order and offsets stay right."""

from __future__ import annotations

from unicorn_async.loader.transfer import make_transfers
from unicorn_async.tensor import DType
from unicorn_async.weights.plan import Chunk, Transform


def chunk(nbytes: int, layer: int = 0, transform: Transform = Transform.TO_F32) -> Chunk:
    source = DType.F32 if transform is Transform.COPY else DType.BF16
    return Chunk(0, 0, nbytes, "dest", 0, transform, source, DType.F32, layer)


def test_small_chunks_of_a_layer_travel_together_where_the_first_one_stood() -> None:
    chunks = [chunk(100), chunk(1000), chunk(50), chunk(70, layer=1), chunk(30, layer=1)]
    transfers = make_transfers(chunks, lambda _: True, small_bytes=200, buffer_bytes=1000)
    assert [transfer.chunks for transfer in transfers] == [
        (chunks[0], chunks[2]),
        (chunks[1],),
        (chunks[3], chunks[4]),
    ]
    assert [transfer.layer for transfer in transfers] == [0, 0, 1]


def test_chunks_of_a_parcel_start_where_conversions_may_read() -> None:
    transfer = make_transfers([chunk(10), chunk(20), chunk(6)], lambda _: True, small_bytes=200, buffer_bytes=1000)[0]
    assert transfer.offsets == (0, 16, 48)
    assert transfer.nbytes == 54
    assert transfer.read_bytes == 36


def test_a_full_buffer_starts_another_transfer() -> None:
    transfers = make_transfers([chunk(60)] * 5, lambda _: True, small_bytes=200, buffer_bytes=128)
    assert [len(transfer.chunks) for transfer in transfers] == [2, 2, 1]
    assert all(transfer.nbytes <= 128 for transfer in transfers)


def test_copies_and_conversions_are_kept_apart() -> None:
    chunks = [chunk(60), chunk(60, transform=Transform.COPY)] * 2
    transfers = make_transfers(chunks, lambda _: True, small_bytes=200, buffer_bytes=1000)
    assert [{part.transform for part in transfer.chunks} for transfer in transfers] == [
        {Transform.TO_F32},
        {Transform.COPY},
    ]


def test_what_is_not_staged_stays_alone() -> None:
    chunks = [chunk(60, transform=Transform.COPY)] * 3
    transfers = make_transfers(chunks, lambda _: False, small_bytes=200, buffer_bytes=1000)
    assert [(len(transfer.chunks), transfer.staged) for transfer in transfers] == [(1, False)] * 3
