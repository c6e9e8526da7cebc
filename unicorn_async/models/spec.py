"""What a model is made of: blocks in layers, between embeddings and an output head. Pure.

A block is the one place that knows its weights, its room in the workspace, its state and how it is recorded; what a
load reads, which memory is planned and which kernels are compiled follows from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.attention import Attention
from unicorn_async.models.blocks.declarations import Fixed, Paged
from unicorn_async.models.blocks.latent_attention import LatentAttention
from unicorn_async.models.blocks.predictor import PredictorInput
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind
from unicorn_async.weights.wanted import WantedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.blocks.declarations import Residue, WeightSpec
    from unicorn_async.models.blocks.embedding import Embedding
    from unicorn_async.models.blocks.head import Head
    from unicorn_async.rotary import RotaryConfig

EMBED_LAYER = -1
T = TypeVar("T")
_DERIVED = (".rotary_emb.inv_freq", ".self_attn.masked_bias", ".self_attn.bias")  # follow from config.json


@dataclass(frozen=True, slots=True)
class Layer:
    """Blocks that are loaded together, and activated at once; `prefix` leads their tensors' names on disk.

    One of them at most keeps something of a sequence. `names` are modules, or tensors, that a family calls
    otherwise than the blocks do: as these call them, and as they are on disk.
    """

    blocks: tuple[Block, ...]
    prefix: str
    names: tuple[tuple[str, str], ...] = ()

    @property
    def attends(self) -> bool:
        """Whether one of its blocks is attention."""
        return any(isinstance(block, Attention | LatentAttention) for block in self.blocks)

    @property
    def attention(self) -> Attention | LatentAttention:
        """The block that attends, of a layer that `attends`."""
        return next(block for block in self.blocks if isinstance(block, Attention | LatentAttention))

    @property
    def state(self) -> Paged | Fixed | None:
        """What its blocks keep of a sequence."""
        return next((block.state for block in self.blocks if block.state is not None), None)

    @property
    def paged(self) -> Paged | None:
        """The same, if it is keys and values."""
        return self.state if isinstance(self.state, Paged) else None

    @property
    def fixed(self) -> Fixed | None:
        """The same, if it does not grow."""
        return self.state if isinstance(self.state, Fixed) else None

    @property
    def before_attention(self) -> tuple[Block, ...]:
        """The blocks before that one."""
        return self.blocks[: self.blocks.index(self.attention)]

    @property
    def after_attention(self) -> tuple[Block, ...]:
        """The blocks behind it."""
        return self.blocks[self.blocks.index(self.attention) + 1 :]

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The tensors of all its blocks."""
        return tuple(weight for block in self.blocks for weight in block.weights)

    def on_disk(self, name: str) -> str:
        """Return the full name of a tensor that a block calls `name`."""
        names = dict(self.names)
        module, _, kind = name.rpartition(".")
        return self.prefix + names.get(name, f"{names.get(module, module)}.{kind}" if module else name)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model: its blocks, and what is said of the whole.

    All its layers that attend do so with the same number of heads of queries; where none does, all keep a state of
    fixed size. Behind its layers checkpoints may have `num_predictors` that predict further tokens. Where the first is
    known, `predictors` are the forms in which files may have it. A model that `predicts` has it as the last of its
    `layers`, behind those through which every step goes. What begins with `unread` in a checkpoint nothing here reads.
    Of each token of a step a layer may leave `carried_size` elements to all behind it.
    """

    architecture: str  # as in config.json, e.g. "Gemma3ForCausalLM"
    hidden_size: int
    vocab_size: int
    max_position: int
    embedding: Embedding
    layers: tuple[Layer, ...]
    head: Head
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())
    num_predictors: int = 0
    predictors: tuple[Layer, ...] = ()
    predicts: bool = False
    unread: tuple[str, ...] = ()
    carried_size: int = 0

    def __post_init__(self) -> None:
        """Check that blocks fit to each other.

        Raises:
            UnsupportedModelError: norms of the residual stream do not all count alike, or a model without attention has
                layers that keep nothing.
        """
        if not self.attends and any(layer.fixed is None for layer in self.layers):
            raise UnsupportedModelError(f"{self.architecture}: a model without attention has layers that keep nothing")
        blocks = self.unique_blocks
        rules = {norm.rule for norm in (self.head.norm, *(norm for block in blocks for norm in block.norms))}
        if len(rules) > 1:
            raise UnsupportedModelError(
                f"{self.architecture}: norms that count differently, by (eps, plus_one, centred): {sorted(rules)}"
            )

    @property
    def num_layers(self) -> int:
        """How many layers there are, but for one that predicts further tokens."""
        return len(self.layers) - self.predicts

    def predicting(self, predictor: Layer) -> ModelSpec:
        """Return the model with one of its predictors."""
        assert predictor in self.predictors and not self.predicts
        return replace(self, layers=(*self.layers, predictor), predicts=True)

    @property
    def predictor_input(self) -> PredictorInput:
        """What the layer that predicts begins with, where there is one."""
        found = self.layers[-1].blocks[0]
        assert self.predicts and isinstance(found, PredictorInput)
        return found

    @property
    def unique_blocks(self) -> tuple[Block, ...]:
        """The blocks of all layers, each that is equal to others once."""
        return tuple(dict.fromkeys(block for layer in self.layers for block in layer.blocks))

    @property
    def attends(self) -> bool:
        """Whether a layer does."""
        return any(layer.attends for layer in self.layers)

    @property
    def attention(self) -> Attention | LatentAttention:
        """The first attention of a model that `attends`; all others have as many heads of queries."""
        return next(layer.attention for layer in self.layers if layer.attends)

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return self.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values of the first attention."""
        return self.attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head of the first attention."""
        return self.attention.head_dim

    @property
    def paged_states(self) -> tuple[Paged, ...]:
        """The different kinds of keys and values that layers keep, by their windows, 0 = all first."""
        states = {layer.paged for layer in self.layers if layer.paged is not None}
        return tuple(sorted(states, key=lambda state: (state.window, state.num_kv_heads, state.head_dim)))

    @property
    def rotaries(self) -> tuple[tuple[RotaryConfig, int], ...]:
        """The different rotary embeddings, with the sizes of the heads, or of parts of them, that they rotate."""
        attentions = [layer.attention for layer in self.layers if layer.attends]
        return tuple(dict.fromkeys((attention.rotary, attention.rotated_dim) for attention in attentions))

    @property
    def has_latents(self) -> bool:
        """Whether layers attend to latents."""
        return any(isinstance(block, LatentAttention) for block in self.unique_blocks)

    @property
    def shares_keys(self) -> bool:
        """Whether layers attend to keys and values of others."""
        return any(layer.attends and layer.paged is None for layer in self.layers)

    def kv_layer(self, layer: int) -> int:
        """Return the layer whose keys and values a layer that attends reads."""
        source = self.layers[layer].attention.kv_layer
        return layer if source is None else source

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each layer in tokens, 0 = all, None = it does not attend."""
        return tuple(layer.attention.window if layer.attends else None for layer in self.layers[: self.num_layers])

    @property
    def has_fixed_state(self) -> bool:
        """Whether sequences have a state that does not grow with them."""
        return any(layer.fixed is not None for layer in self.layers)

    @property
    def workspace(self) -> Mapping[str, int]:
        """Elements a token of each intermediate result of a layer."""
        columns: dict[str, int] = {}
        for block in self.unique_blocks:
            for name, count in block.workspace.items():
                columns[name] = max(columns.get(name, 0), count)
        return columns

    @property
    def head_workspace(self) -> Mapping[str, int]:
        """Elements a row of logits of each intermediate result of the head."""
        return self.head.workspace

    @property
    def tied_tensors(self) -> tuple[str, ...]:
        """Names of the embeddings' and of the head's table where both are one; else none."""
        return (self.embedding.name, self.head.name) if self.head.is_tied else ()

    @property
    def widest_input(self) -> int:
        """The most columns of a matrix."""
        return max(weight.shape[-1] for weight in self._weights() if weight.kind is not WeightKind.VECTOR)

    def residue(self, layer: int) -> Residue | None:
        """Return how what is left in front of a layer, or of the head (L), is added; None behind the embeddings."""
        if layer == 0:
            return None
        return self.layers[layer - 1].blocks[-1].residue.behind(f"layers.{layer - 1}.")

    def wanted_tensors(self) -> tuple[WantedTensor, ...]:
        """Return all tensors in the order in which a first prompt needs them."""
        wanted = [_wanted(weight, EMBED_LAYER) for weight in self.embedding.weights]
        for number, layer in enumerate(self.layers):
            dest = f"layers.{number}."
            wanted += [_wanted(weight, number, dest, layer.on_disk(weight.name)) for weight in layer.weights]
        return (*wanted, *(_wanted(weight, self.num_layers) for weight in self.head.weights))

    def memory_groups(self) -> Mapping[str, MemoryGroup]:
        """Return what each destination is read for; a table that is embeddings and head counts as the head."""
        groups = {weight.dest: weight.group for weight in (*self.embedding.weights, *self.head.weights)}
        for number, layer in enumerate(self.layers):
            groups |= {f"layers.{number}.{weight.dest}": weight.group for weight in layer.weights}
        groups[self.head.table] = MemoryGroup.HEAD
        return groups

    def read_by_all(self, matrices: Mapping[str, T]) -> list[T]:
        """Return, of what is known of matrices by their destinations, that of those which every token reads."""
        groups = self.memory_groups()
        return [matrix for dest, matrix in matrices.items() if groups.get(dest) is not MemoryGroup.EXPERTS]

    def check_unused(self, names: Iterable[str]) -> None:
        """Check that what a checkpoint has beyond the wanted tensors does not belong to the model.

        Raises:
            UnsupportedModelError: a tensor would change the result, and nothing here computes with it.
        """
        last = self.num_layers + self.num_predictors
        unread = [*self.unread, *(f"model.layers.{layer}." for layer in range(self.num_layers, last))]
        for layer, found in enumerate(self.layers):
            if found.attends and found.paged is None:  # what such layers have of keys and values, nothing reads
                unread += [f"model.layers.{layer}.self_attn.{part}." for part in ("k_proj", "v_proj", "k_norm")]
        for name in names:
            if name not in self.tied_tensors and not name.endswith(_DERIVED) and not name.startswith(tuple(unread)):
                raise UnsupportedModelError(
                    f"tensor {name!r}: {self.architecture} as it is supported here has no such tensor"
                )

    def _weights(self) -> Iterator[WeightSpec]:
        yield from self.embedding.weights
        for block in self.unique_blocks:
            yield from block.weights
        yield from self.head.weights


def matrix_names(blocks: Sequence[Block]) -> tuple[str, ...]:
    """Return the destinations of blocks' matrices that every token reads, each once: not those of experts."""
    weights = (weight for block in blocks for weight in block.weights)
    kinds, others = (WeightKind.MATRIX, WeightKind.KEPT), MemoryGroup.EXPERTS
    return tuple(
        dict.fromkeys(weight.dest for weight in weights if weight.kind in kinds and weight.group is not others)
    )


def _wanted(weight: WeightSpec, layer: int, dest: str = "", name: str | None = None) -> WantedTensor:
    return WantedTensor(
        weight.name if name is None else name,
        weight.shape,
        layer,
        dest + weight.dest,
        weight.row_offset,
        as_f32=weight.kind is WeightKind.VECTOR,
        is_table=weight.kind is WeightKind.TABLE,
        head_order=weight.head_order,
        stacked=weight.stacked,
        runs=weight.runs,
        is_transposed=weight.is_transposed,
        is_gathered=weight.is_gathered,
        is_expert=weight.group is MemoryGroup.EXPERTS,
        file_rows=weight.file_rows,
        is_kept=weight.kind is WeightKind.KEPT,
    )
