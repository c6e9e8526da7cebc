"""What a decoder records beside a layer's attention, on a made-up device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.gpu.made_up import DISCRETE
from unicorn_async.models import decoder
from unicorn_async.models.decoder import Decoder, DecoderState
from unicorn_async.models.registry import model_config
from unicorn_async.tensor import DType, Tensor

from .test_registry import LLAMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.tensor import Weight

CONFIG = model_config(LLAMA | {"num_hidden_layers": 3})
PARTS = {"qkv": (192, 64), "o": (64, 64), "gate_up": (256, 64), "down": (64, 128)}
MATRICES = {
    f"layers.{layer}.{part}": Tensor(100 * layer + index, shape, DType.F32)
    for layer in range(CONFIG.num_layers)
    for index, (part, shape) in enumerate(PARTS.items())
}
NAMES = {matrix.address: name for name, matrix in MATRICES.items()}


class Attention:
    """Notes that it was recorded."""

    def __init__(self, recorded: list[Any]) -> None:
        self._recorded = recorded

    def writes(self, form: object) -> bool:
        return False

    def record(self, *_: object, **__: object) -> None:
        self._recorded.append("attention")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is recorded, in its order; of reads of pages the matrices' names."""
    found: list[Any] = []

    def touch(recorder: object, kernels: object, weights: Iterable[Weight], *, sink: int) -> None:
        assert sink == 9
        found.append([NAMES[weight.address] for weight in weights if isinstance(weight, Tensor)])

    monkeypatch.setattr(decoder, "touch_pages", touch)
    for part in ("before", "after"):
        monkeypatch.setattr(Decoder, f"record_{part}_attention", lambda *_, name=part, **__: found.append(name))
    return found


def record(num_tokens: int, layer: int, *, chains: bool, touches_pages: bool = True, recorded: list[Any]) -> None:
    def rows(name: str, num_rows: int, columns: int) -> Tensor:
        return Tensor(0, (num_rows, columns), DType.F32)

    activations = SimpleNamespace(address={"touched": 9}, rows=rows, scratch=None)
    state = DecoderState({}, MATRICES, [], cast("Any", activations), last_token=0)
    unused = cast("Any", None)
    made = Decoder(CONFIG, unused, unused, DISCRETE, state, touches_pages=touches_pages)
    made.record_layer(
        cast("Any", SimpleNamespace(barrier=lambda: recorded.append("barrier"))),
        unused,
        num_tokens,
        layer,
        attention=cast("Any", Attention(recorded)),
        cache=unused,
        slot_mapping=0,
        batch=cast("Any", SimpleNamespace(has_prefill=True)),
        chains=chains,
    )


def names_of(layer: int, parts: Sequence[str]) -> list[str]:
    return [f"layers.{layer}.{part}" for part in parts]


@pytest.mark.parametrize("num_tokens", [1, 8, 64])
def test_beside_the_attention_is_read_what_comes_before_the_next_one(num_tokens: int, recorded: list[Any]) -> None:
    record(num_tokens, 1, chains=True, recorded=recorded)
    touched = [*names_of(1, ("o", "gate_up", "down")), "layers.2.qkv"]
    assert recorded == ["before", "attention", touched, "barrier", "after"]


def test_the_next_layer_is_left_alone_where_it_need_not_be_there(recorded: list[Any]) -> None:
    record(8, 2, chains=False, recorded=recorded)
    assert recorded[2] == names_of(2, ("o", "gate_up", "down"))


@pytest.mark.parametrize(("num_tokens", "touches_pages"), [(65, True), (512, True), (8, False)])
def test_no_pages_are_read_for_many_tokens_nor_where_that_does_not_pay(
    num_tokens: int, touches_pages: bool, recorded: list[Any]
) -> None:
    record(num_tokens, 1, chains=True, touches_pages=touches_pages, recorded=recorded)
    assert recorded == ["before", "attention", "barrier", "after"]
