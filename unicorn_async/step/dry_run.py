"""What a model's steps would dispatch on a device, found by recording them over tensors that have no memory.

Whoever has to know beforehand which kernels a model needs, or which products its steps consist of, asks here: there is
no second description of a layer. Layers with the same blocks over weights of the same types are recorded once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, cast

from unicorn_async.config import MAX_SPECULATING
from unicorn_async.gpu.listing import KernelListing, unique_requests
from unicorn_async.memory.plan import max_logit_rows
from unicorn_async.models.activations import Activations, Residual
from unicorn_async.models.block_recorder import DecoderState, FixedPlace, LayerAttention, RecordingTools
from unicorn_async.models.decoder import Decoder
from unicorn_async.models.step_arrays import StepArrays
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.ops.kv_cache import KVCache
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.ops.page_touch import pays_to_touch
from unicorn_async.ops.predictor_steps import PredictorSteps, predictor_steps
from unicorn_async.ops.sampling import SampleArguments, SamplingPath, record_counts, record_sampling
from unicorn_async.step.buckets import bucket_sizes
from unicorn_async.tensor import DType, Tensor
from unicorn_async.weights.column_order import order_name
from unicorn_async.weights.tensors import unplaced_matrices

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.listing import ListedDispatch
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.weights.plan import LoadPlan

_FIRST_STEPS = (32, 1)  # tokens: a short prompt, then decoding
_PAUSE_S = 5e-5  # without one a thread that releases the lock has it back at once
_PLACE = 256  # the address of everything that is not left out
_CACHE = KVCache(_PLACE, _PLACE)
_ARRAYS = StepArrays(_PLACE, _PLACE, _PLACE, _PLACE, _PLACE, _PLACE, _PLACE, _PLACE, _PLACE, Residual(_PLACE, _PLACE))
_BATCH = AttentionBatch(0, 0, 0, 0, 1, 0, 0, DecodeScratch(0, 0), cast("Buffer", None), 0, 0)


class _Nowhere(Mapping[object, int]):
    """The address of anything by its name."""

    def __getitem__(self, key: object) -> int:
        return _PLACE

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __len__(self) -> int:
        return 0


class DryRun:
    """Lists the dispatches of a model's steps; an instance is used by one thread."""

    def __init__(
        self, info: DeviceInfo, spec: ModelSpec, shape: AttentionShape, plan: LoadPlan, *, attends: bool = True
    ) -> None:
        """List for a device; `shape` is as in `RecordingTools`, where it `attends` or another does."""
        self._spec = spec
        self._listing = listing = KernelListing()
        self._matrices = unplaced_matrices(plan)
        self._vectors = vectors = {
            dest.name: Tensor(0, dest.shape, DType.F32) for dest in plan.destinations if len(dest.shape) != 2
        }
        scratch = LinearScratch.at(0, 1 << 30, spec.widest_input)
        activations = Activations(cast("Mapping[str, int]", _Nowhere()), scratch)
        freqs = dict.fromkeys(spec.rotaries, 0)
        state = DecoderState(vectors, self._matrices, freqs, activations, last_token=0)
        touches = attends and pays_to_touch(info, spec.read_by_all(self._matrices))
        self._decoder = Decoder(spec, RecordingTools(listing, info, shape, state), touches_pages=touches)
        self._info = info
        self._attention = {}
        if attends:
            self._attention = {
                state: GpuAttention(info, listing, shape.with_heads(state), soft_cap=spec.attention.soft_cap)
                for state in spec.paged_states
            }
        self._known: dict[Hashable, tuple[ListedDispatch, ...]] = {}
        self._signatures = tuple(self._signature(layer) for layer in range(spec.num_layers))
        first: dict[Hashable, int] = {}  # layer of those that are alike
        for layer, signature in enumerate(self._signatures):
            first.setdefault(signature, layer)
        self._unique = tuple(first.values())

    def embedding(self) -> tuple[ListedDispatch, ...]:
        """List what comes before the first layer."""
        self._decoder.record_embed(self._listing, _ARRAYS, 1)
        return self._listing.take()

    def layers(self, num_tokens: int) -> Iterator[tuple[ListedDispatch, ...]]:
        """List each layer of steps recorded for so many tokens, prompts among them."""
        return (self._layer(num_tokens, layer, has_prefill=True) for layer in range(self._spec.num_layers))

    def unique_layers(self, num_tokens: int) -> Iterator[ListedDispatch]:
        """List what layers dispatch in steps recorded for so many tokens, with prompts or without; of like ones one."""
        for layer in self._unique:
            if (
                num_tokens <= MAX_ROTATING_TOKENS and self._spec.layers[layer].attends
            ):  # few tokens that are all decoded are rotated while they attend
                yield from self._layer(num_tokens, layer, has_prefill=False)
            yield from self._layer(num_tokens, layer, has_prefill=True)

    def head(self, num_rows: int) -> tuple[ListedDispatch, ...]:
        """List the output head of steps with so many rows of logits."""
        self._decoder.record_head(self._listing, _ARRAYS, num_rows, num_rows)
        return self._listing.take()

    def prediction(self, num_tokens: int, num_rows: int) -> tuple[ListedDispatch, ...]:
        """List what predicts a token more behind steps of so many tokens and rows of logits, where the model does."""
        spec = self._spec
        if not spec.predicts:
            return ()
        attention = self._attention[spec.layers[spec.num_layers].attention.keys]
        place = LayerAttention(attention, _CACHE, 0, replace(_BATCH, has_prefill=True))
        self._decoder.record_prediction(self._listing, _ARRAYS, num_tokens, num_rows, place)
        return self._listing.take()

    def further_prediction(self, num_tokens: int, num_rows: int) -> tuple[ListedDispatch, ...]:
        """List what predicts one token more of `num_rows` sequences behind a stream of so many tokens."""
        spec = self._spec
        if not spec.predicts:
            return ()
        attention = self._attention[spec.layers[spec.num_layers].attention.keys]
        place = LayerAttention(attention, _CACHE, 0, replace(_BATCH, has_prefill=False))
        places = PredictorSteps(*10 * (_PLACE,))
        predictor_steps(
            self._listing,
            self._listing,
            places,
            num_sequences=num_rows,
            predicted=_PLACE,
            token_ids=_PLACE,
            positions=_PLACE,
            logit_rows=_PLACE,
            sampled=_PLACE,
            is_first=True,
        )
        self._decoder.record_further_prediction(self._listing, _ARRAYS, num_tokens, num_rows, place, from_rows=_PLACE)
        return self._listing.take()

    def sampling(
        self, path: SamplingPath, *, counts: bool = False, masked: bool = False, biased: bool = False
    ) -> tuple[ListedDispatch, ...]:
        """List what chooses tokens, where it is `masked` among those that may come, and what `counts` those seen.

        Where they are `biased`, what changes their logits comes first.
        """
        logits = Tensor(0, (1, self._spec.vocab_size), DType.F32)
        arguments = SampleArguments(logits, 0, 0, 0, 0, masks=_PLACE if masked else 0, biases=_PLACE if biased else 0)
        record_sampling(self._listing, self._listing, self._info, path, arguments)
        if counts:
            vocab_size = self._spec.vocab_size
            record_counts(
                self._listing,
                self._listing,
                resets=0,
                num_states=1,
                marks=0,
                num_marks=1,
                counts=0,
                vocab_size=vocab_size,
            )
        return self._listing.take()

    def pooling(self) -> tuple[ListedDispatch, ...]:
        """List what makes embeddings of hidden states."""
        self._decoder.record_pooling(self._listing, _ARRAYS, 1, num_parts=1, sums=_PLACE, out=_PLACE)
        return self._listing.take()

    def _signature(self, layer: int) -> Hashable:
        """What decides a layer's dispatches: its blocks, the types of its weights, and how it begins.

        A block's `alike` leaves out what only the values of push constants are made of.
        """
        found = self._spec.layers[layer]
        names = dict.fromkeys(weight.dest for weight in found.weights)
        full_names = [f"layers.{layer}.{name}" for name in names]
        matrices = tuple(self._matrices.get(name) for name in full_names)
        orders = tuple(order_name(name) in self._vectors for name in full_names)
        return tuple(block.alike for block in found.blocks), matrices, orders, layer == 0

    def _layer(self, num_tokens: int, layer: int, *, has_prefill: bool) -> tuple[ListedDispatch, ...]:
        key = num_tokens, self._signatures[layer], has_prefill
        if key not in self._known:
            time.sleep(_PAUSE_S)  # whoever waits for Python's lock has it in between
            self._known[key] = self._recorded(num_tokens, layer, has_prefill=has_prefill)
        return self._known[key]

    def _recorded(self, num_tokens: int, layer: int, *, has_prefill: bool) -> tuple[ListedDispatch, ...]:
        decoder, listing, found = self._decoder, self._listing, self._spec.layers[layer]
        if not found.attends:
            decoder.record_layer(listing, _ARRAYS, num_tokens, layer, FixedPlace(_PLACE, has_prefill))
            return listing.take()
        state = found.attention.keys
        if state not in self._attention:
            rows = Tensor(0, (num_tokens, self._spec.attention.columns), DType.F32)
            decoder.record_before_attention(listing, _ARRAYS, layer, q=rows, cache=_CACHE, slot_mapping=0)
            decoder.record_after_attention(listing, _ARRAYS, num_tokens, layer, rows)
            return listing.take()
        place = LayerAttention(self._attention[state], _CACHE, 0, replace(_BATCH, has_prefill=has_prefill))
        decoder.record_layer(listing, _ARRAYS, num_tokens, layer, place)
        return listing.take()


def step_kernels(
    run: DryRun, options: EngineConfig, *, seam: Iterable[KernelRequest] = ()
) -> tuple[KernelRequest, ...]:
    """Return each pipeline once, in the order of need: a short prompt and decoding, then more of both.

    Where another device attends, `seam` names what leads there.
    """
    others = [size for size in bucket_sizes(options.max_num_batched_tokens) if size not in _FIRST_STEPS]
    first_rows, *other_rows = bucket_sizes(max_logit_rows(options))
    first = chain(
        run.embedding(),
        *(run.unique_layers(size) for size in _FIRST_STEPS),
        run.head(first_rows),
        *(run.prediction(size, first_rows) for size in _FIRST_STEPS),
    )
    then = chain(
        run.sampling(SamplingPath.GREEDY),
        run.sampling(SamplingPath.FULL, counts=True),
        *(run.unique_layers(size) for size in others),
        *(run.head(rows) for rows in other_rows),
        *(run.prediction(size, first_rows) for size in others),
        *(run.further_prediction(rows, rows) for rows in bucket_sizes(MAX_SPECULATING)),
        *(run.sampling(path, masked=True, biased=True) for path in SamplingPath),
        run.pooling(),
    )
    return unique_requests([*_requests(first), *seam, *_requests(then)])


def _requests(dispatches: Iterable[ListedDispatch]) -> Iterator[KernelRequest]:
    return (dispatch.request for dispatch in dispatches)
