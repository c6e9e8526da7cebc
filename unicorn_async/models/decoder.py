"""Records a model's part of a step: embeddings, layers of blocks, output head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.models.block_recorder import BlockRecorder
from unicorn_async.models.blocks.attention import Attention
from unicorn_async.models.blocks.predictor import STATE
from unicorn_async.models.spec import matrix_names
from unicorn_async.ops.pooling import pool_rows

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Recorder
    from unicorn_async.models.block_recorder import FixedPlace, LayerAttention, RecordingTools
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.models.step_arrays import StepArrays
    from unicorn_async.ops.kv_cache import KVCache
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Tensor


class Decoder:
    """Records segments of a step; it owns nothing on the device.

    Each segment ends with a barrier, so that segments may follow each other in one submission or in several, and those
    of another step may come between two of them. A layer begins with the addition of what the layer before it left in
    `branch`, so that no layer needs a weight of the next one.
    """

    def __init__(self, spec: ModelSpec, tools: RecordingTools, *, touches_pages: bool) -> None:
        """Record for one model; `touches_pages` is what `pays_to_touch` says of the matrices that every token reads."""
        self._spec = spec
        self._tools = tools
        self._prefixes = [f"layers.{layer}." for layer in range(len(spec.layers))]
        self._left = [spec.residue(layer) for layer in range(len(spec.layers) + 1)]
        self._touches = touches_pages

    def record_embed(self, commands: Recorder, arrays: StepArrays, num_tokens: int) -> None:
        """Record the embedding rows of a step's tokens into its `hidden`."""
        recorder = BlockRecorder(commands, self._tools, arrays, num_tokens, self._spec.hidden_size)
        self._spec.embedding.record(recorder)

    def record_layer(
        self,
        commands: Recorder,
        arrays: StepArrays,
        num_tokens: int,
        layer: int,
        place: LayerAttention | FixedPlace | None,
        *,
        chains: bool = False,
    ) -> None:
        """Record one layer, whose state is at `place`.

        With `chains` the next one is there as well, and follows in the same submission.
        """
        recorder = self._recorder(
            commands, arrays, num_tokens, layer, place=place, touched=self._read_next(layer, chains=chains)
        )
        for block in self._spec.layers[layer].blocks:
            block.record(recorder)

    def record_before_attention(
        self, commands: Recorder, arrays: StepArrays, layer: int, *, q: Tensor, cache: KVCache, slot_mapping: int
    ) -> None:
        """Record a layer up to its attention, see `Attention.record_before`."""
        recorder = self._recorder(commands, arrays, q.shape[0], layer)
        found = self._spec.layers[layer]
        for block in found.before_attention:
            block.record(recorder)
        assert isinstance(found.attention, Attention), "others do not attend elsewhere"
        found.attention.record_before(recorder, q=q, cache=cache, slot_mapping=slot_mapping)

    def record_after_attention(
        self, commands: Recorder, arrays: StepArrays, num_tokens: int, layer: int, attended: Rows
    ) -> None:
        """Record the rest of a layer, see `Attention.record_after`."""
        recorder = self._recorder(commands, arrays, num_tokens, layer)
        found = self._spec.layers[layer]
        assert isinstance(found.attention, Attention), "others do not attend elsewhere"
        found.attention.record_after(recorder, attended)
        for block in found.after_attention:
            block.record(recorder)

    def record_head(self, commands: Recorder, arrays: StepArrays, num_tokens: int, num_rows: int) -> Tensor:
        """Record the logits of the step's rows that want them; returns where they will be, (num_rows, vocab) f32."""
        spec = self._spec
        recorder = BlockRecorder(
            commands, self._tools, arrays, num_tokens, spec.hidden_size, left=self._left[spec.num_layers]
        )
        return spec.head.record(recorder, num_rows)

    def record_prediction(
        self, commands: Recorder, arrays: StepArrays, num_tokens: int, num_rows: int, place: LayerAttention
    ) -> Tensor | None:
        """Record, behind the head and the sampling, the layer that predicts a token more; the stream ends with that.

        Return where the logits of the step's first `num_rows` rows will be, as for `record_head`; None for no rows.
        """
        spec, left = self._spec, self._left[self._spec.num_layers]
        before = BlockRecorder(commands, self._tools, arrays, num_tokens, spec.hidden_size, left=left)
        norm = spec.head.norm if spec.predictor_input.reads_normed else None
        before.add_norm(norm, out=before.rows(STATE, spec.hidden_size))
        return self._record_predictor(commands, arrays, num_tokens, num_rows, place)

    def record_further_prediction(
        self,
        commands: Recorder,
        arrays: StepArrays,
        num_tokens: int,
        num_rows: int,
        place: LayerAttention,
        *,
        from_rows: int,
    ) -> Tensor:
        """Record, behind a prediction of a stream of `num_tokens`, one of the tokens behind `num_rows` of these.

        `arrays` are those of the predicted tokens, a row each, `from_rows` the address of (num_rows) u32, the rows of
        the stream that they come behind. Source: vLLM's `EagleProposer`, which has what such a layer leaves of a token
        stand for the state behind the last layer; where that has had the model's last norm, this has had its own.
        """
        spec, layer = self._spec, self._spec.num_layers
        before = BlockRecorder(
            commands,
            self._tools,
            arrays,
            num_tokens,
            spec.hidden_size,
            prefix=self._prefixes[layer],
            left=self._left[layer + 1],
        )
        begun = spec.predictor_input
        norm = begun.head_norm if begun.reads_normed else None
        before.add_norm(norm, out=before.rows(STATE, spec.hidden_size, num_rows), rows=from_rows, num_rows=num_rows)
        found = self._record_predictor(commands, arrays, num_rows, num_rows, place)
        assert found is not None
        return found

    def _record_predictor(
        self, commands: Recorder, arrays: StepArrays, num_tokens: int, num_rows: int, place: LayerAttention
    ) -> Tensor | None:
        """Record the layer, of the states that lie there, and the logits of its first `num_rows` rows, if any."""
        spec, layer = self._spec, self._spec.num_layers
        recorder = BlockRecorder(
            commands,
            self._tools,
            arrays,
            num_tokens,
            spec.hidden_size,
            prefix=self._prefixes[layer],
            place=place,
        )
        for block in spec.layers[layer].blocks:
            block.record(recorder)
        if not num_rows:
            return None
        before = BlockRecorder(commands, self._tools, arrays, num_tokens, spec.hidden_size)
        begun = spec.predictor_input
        rows = before.input(spec.head.table, "head_input", num_rows)
        recorder.add_norm(begun.head_norm, out=rows, rows=arrays.logit_rows, num_rows=num_rows, scale=spec.head.scale)
        return spec.head.record_table(before, rows, num_rows)

    def record_pooling(
        self, commands: Recorder, arrays: StepArrays, num_tokens: int, *, num_parts: int, sums: int, out: int
    ) -> None:
        """Record the embeddings of the step's `pools`, of the last norm of hidden states; the stream ends with that.

        `sums` and `out` are as for `pool_rows`.
        """
        spec = self._spec
        recorder = BlockRecorder(
            commands, self._tools, arrays, num_tokens, spec.hidden_size, left=self._left[spec.num_layers]
        )
        recorder.add_norm(spec.head.norm, out=recorder.branch)
        pool_rows(
            commands,
            self._tools.kernels,
            x=recorder.branch,
            parts=arrays.pools,
            num_parts=num_parts,
            sums=sums,
            out=out,
        )
        recorder.barrier()

    def _recorder(
        self,
        commands: Recorder,
        arrays: StepArrays,
        num_tokens: int,
        layer: int,
        *,
        place: LayerAttention | FixedPlace | None = None,
        touched: tuple[str, ...] = (),
    ) -> BlockRecorder:
        return BlockRecorder(
            commands,
            self._tools,
            arrays,
            num_tokens,
            self._spec.hidden_size,
            prefix=self._prefixes[layer],
            left=self._left[layer],
            place=place,
            touched=touched,
        )

    def _read_next(self, layer: int, *, chains: bool) -> tuple[str, ...]:
        """Names of what is read from a layer's attention to the next layer's, as far as that is there."""
        layers = self._spec.layers
        if not self._touches or not layers[layer].attends:
            return ()
        behind = (*layers[layer].attention.outputs, *matrix_names(layers[layer].after_attention))
        names = [f"layers.{layer}.{name}" for name in behind]
        if chains and layers[layer + 1].attends:
            before = (*matrix_names(layers[layer + 1].before_attention), *layers[layer + 1].attention.inputs)
            names += [f"layers.{layer + 1}.{name}" for name in before]
        return tuple(names)
