"""Which products of a model are measured first, on made-up devices."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.gpu.made_up import DISCRETE, SOFTWARE
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.tune.products import ModelProduct, products_of

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo


def products(info: DeviceInfo) -> list[tuple[int, list[ModelProduct]]]:
    """The demo model's, by the steps' tokens, in their order."""
    on_disk = ModelFiles.read("demo", WeightScheme.INT4)
    found = products_of(info, on_disk.config, on_disk.plan, EngineConfig(max_num_seqs=8, max_num_batched_tokens=64))
    return [(tokens, list(some)) for tokens, some in itertools.groupby(found, lambda one: one.product.tokens)]


@pytest.mark.parametrize("info", [SOFTWARE, DISCRETE], ids=lambda info: info.type.value)
def test_of_each_size_the_product_with_the_largest_weights_comes_first(info: DeviceInfo) -> None:
    for _, some in products(info):
        sizes = [one.nbytes for one in some]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) > 1
    (_, of_one_token), *_ = products(info)
    assert [one.matrix for one in of_one_token] == ["gate_up", "down", "qkv", "head", "o"]


def test_steps_that_decode_come_first_then_the_largest_and_then_all_others() -> None:
    assert [tokens for tokens, _ in products(SOFTWARE)] == [1, 8, 32, 2, 4, 16, 64, 12, 24, 48]


def test_the_head_is_multiplied_by_as_many_rows_as_there_are_sequences_at_most() -> None:
    assert {tokens for tokens, some in products(SOFTWARE) if any(one.matrix == "head" for one in some)} == {1, 2, 4, 8}
