from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.engine.tuner import Tuner
from unicorn_async.engine.tuning_products import weight_bytes
from unicorn_async.errors import OutOfMemoryError, UnsupportedModelError
from unicorn_async.ops.linear_candidates import Product, candidates
from unicorn_async.tensor import QuantFormat, QuantTensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

PRODUCTS = (
    Product("bf16", 1, 128, 256),
    Product("bf16", 1, 128, 256, gated=True),
    Product("q4", 1, 128, 256, gated=True, blocked=True),
    Product("q6_k", 3, 96, 512),
    Product("f32", 33, 64, 64),
)


def test_what_is_measured_is_one_of_the_candidates_and_no_slower_than_the_rules(device: Device) -> None:
    before = device.live_objects(), device.memory.num_buffers
    with Tuner(device, PRODUCTS) as tuner:
        for product in PRODUCTS:
            found = tuner.measure(product, most_s=600.0)
            assert found is not None
            assert found.product == product
            plans = candidates(device.info, product)
            assert found.rule == plans[0]
            assert found.best in plans
            assert found.num_candidates == len(plans)
            assert found.best_us > 0
            if found.best is found.rule:
                assert found.gain == 0
            else:
                assert found.gain >= 0.03
    device.memory.collect()
    assert (device.live_objects(), device.memory.num_buffers) == before


def test_a_product_that_would_take_too_long_is_left_alone(device: Device) -> None:
    with Tuner(device, PRODUCTS[:1]) as tuner:
        assert tuner.measure(PRODUCTS[0], most_s=0.0) is None


def test_products_that_no_kernel_takes_or_that_have_no_room_are_refused(device: Device) -> None:
    before = device.live_objects(), device.memory.num_buffers
    with Tuner(device, PRODUCTS[:1]) as tuner, pytest.raises(UnsupportedModelError, match="12 elements"):
        tuner.measure(Product("bf16", 1, 8, 12), most_s=600.0)
    with pytest.raises(OutOfMemoryError):
        Tuner(device, (Product("f32", 1, 1 << 24, 1 << 24),))
    device.memory.collect()
    assert (device.live_objects(), device.memory.num_buffers) == before


def test_the_weights_bytes_are_those_that_lie_on_the_device() -> None:
    assert weight_bytes(Product("bf16", 8, 6, 16)) == 6 * 16 * 2
    assert weight_bytes(Product("q6_k", 8, 6, 512)) == QuantTensor.size((6, 512), QuantFormat.Q6_K)
