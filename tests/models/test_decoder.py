"""What a model's blocks dispatch, seen by a recorder that only lists."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.gpu.made_up import DISCRETE
from unicorn_async.config import KVDType
from unicorn_async.gpu.listing import KernelListing
from unicorn_async.models.activations import Activations, Residual
from unicorn_async.models.block_recorder import DecoderState, LayerAttention, RecordingTools
from unicorn_async.models.decoder import Decoder
from unicorn_async.models.registry import model_spec
from unicorn_async.models.step_arrays import StepArrays
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch
from unicorn_async.ops.kv_cache import AttentionShape, KVCache
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.tensor import DType, Tensor

from .test_registry import GEMMA, LLAMA

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

SPEC = model_spec(LLAMA | {"num_hidden_layers": 3})
SIZES = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 64, "vocab_size": 64}
SANDWICH = model_spec({**GEMMA, **SIZES, "intermediate_size": 128, "num_hidden_layers": 2})
ADDRESSES = {name: 4096 * number for number, name in enumerate(("normed", "qkv", "q", "attention", "gate_up", "gated"))}
ARRAYS = StepArrays(1, 2, 3, 4, 5, 6, 9, 7, 8, Residual(1 << 20, 2 << 20))


def tensors_of(spec: ModelSpec) -> dict[str, Tensor]:
    """A dense tensor for each destination, each at an address of its own."""
    rows: dict[str, int] = {}
    columns: dict[str, tuple[int, ...]] = {}
    for want in spec.wanted_tensors():
        rows[want.dest] = rows.get(want.dest, 0) + want.shape[0]
        columns[want.dest] = want.shape[1:]
    return {
        name: Tensor(1000 + number, (count, *columns[name]), DType.F32)
        for number, (name, count) in enumerate(rows.items())
    }


class Lister:
    """Records parts of a step of a model with dense weights, and lists them."""

    def __init__(self, spec: ModelSpec = SPEC, *, touches_pages: bool = False) -> None:
        self.spec = spec
        self.tensors = tensors_of(spec)
        self.names = {tensor.address: name for name, tensor in self.tensors.items()}
        self.listing = KernelListing()
        shape = AttentionShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, 16, KVDType.F16)
        places = {**ADDRESSES, "head_input": 1, "logits": 2, "touched": 9}
        activations = Activations(places, LinearScratch.at(0, 1 << 20, 1 << 10))
        freqs = {rotary: 77 + number for number, rotary in enumerate(spec.rotaries)}
        vectors = {name: tensor for name, tensor in self.tensors.items() if len(tensor.shape) == 1}
        state = DecoderState(vectors, self.tensors, freqs, activations, last_token=0)
        tools = RecordingTools(self.listing, DISCRETE, shape, state)
        self.decoder = Decoder(spec, tools, touches_pages=touches_pages)
        self.attention = GpuAttention(DISCRETE, self.listing, shape)

    def layer(self, layer: int, num_tokens: int = 8, *, prefill: bool = True, chains: bool = False) -> list[str]:
        batch = AttentionBatch(0, 0, 0, 0, 1, 0, 0, DecodeScratch(0, 0), cast("Any", None), 0, 0)
        place = LayerAttention(self.attention, KVCache(0, 0), 0, replace(batch, has_prefill=prefill))
        self.decoder.record_layer(self.listing, ARRAYS, num_tokens, layer, place, chains=chains)
        return self.taken()

    def taken(self) -> list[str]:
        """Dispatches by their kernels' families, with the names of the weights that they read."""
        found = []
        for dispatch in self.listing.take():
            fields = dispatch.fields
            read = [fields.get(name) for name in ("post_weight", "weight", *(f"first{index}" for index in range(4)))]
            names = [self.names[int(address)] for address in read if address]
            found.append(" ".join((dispatch.request.name.split("_")[0], *names)))
        return found


def test_a_layer_adds_what_the_one_before_it_left_and_needs_nothing_of_the_next() -> None:
    assert Lister().layer(1) == [
        "rms layers.1.input_norm",
        "linear layers.1.qkv",
        "rope",
        "attention",
        "attention",
        "linear layers.1.o",
        "rms layers.1.ffn_norm",
        "linear layers.1.gate_up",
        "gated",
        "linear layers.1.down",
    ]


def test_norms_behind_blocks_are_of_the_block_that_is_added() -> None:
    lister = Lister(SANDWICH)
    norms = [line for line in [*lister.layer(0), *lister.layer(1)] if line.startswith("rms")]
    assert norms == [
        "rms layers.0.input_norm",
        "rms layers.0.post_attention_norm layers.0.ffn_norm",
        "rms layers.0.post_ffn_norm layers.1.input_norm",
        "rms layers.1.post_attention_norm layers.1.ffn_norm",
    ]
    lister.decoder.record_head(lister.listing, ARRAYS, 8, 2)
    assert lister.taken() == ["rms layers.1.post_ffn_norm norm", "linear embed"]


def test_a_layer_that_is_cut_at_its_attention_is_the_same_layer() -> None:
    lister = Lister(SANDWICH)
    whole = [line for line in lister.layer(1) if not line.startswith("attention")]
    rows = Tensor(0, (8, 128), DType.F32)
    lister.decoder.record_before_attention(lister.listing, ARRAYS, 1, q=rows, cache=KVCache(0, 0), slot_mapping=0)
    before = lister.taken()
    lister.decoder.record_after_attention(lister.listing, ARRAYS, 8, 1, rows)
    assert before[-1] == "rope"
    assert before + lister.taken() == whole


def test_few_tokens_that_are_decoded_are_rotated_while_they_attend() -> None:
    lister = Lister()
    assert "rope" not in lister.layer(1, num_tokens=4, prefill=False)
    assert "rope" in lister.layer(1, num_tokens=8, prefill=False)
    assert "rope" in lister.layer(1, num_tokens=4)


@pytest.mark.parametrize("num_tokens", [1, 8, 64])
def test_beside_the_attention_is_read_what_comes_before_the_next_one(num_tokens: int) -> None:
    found = Lister(touches_pages=True).layer(1, num_tokens, chains=True)
    after = found.index("touch layers.1.o layers.1.gate_up layers.1.down layers.2.qkv")
    assert found[after - 1] == "attention"
    assert found[after + 1] == "linear layers.1.o"


def test_the_next_layer_is_left_alone_where_it_need_not_be_there() -> None:
    assert "touch layers.2.o layers.2.gate_up layers.2.down" in Lister(touches_pages=True).layer(2)


@pytest.mark.parametrize(("num_tokens", "touches_pages"), [(65, True), (512, True), (8, False)])
def test_no_pages_are_read_for_many_tokens_nor_where_that_does_not_pay(num_tokens: int, touches_pages: bool) -> None:
    found = Lister(touches_pages=touches_pages).layer(1, num_tokens, chains=True)
    assert not any(line.startswith("touch") for line in found)
