"""What a GGUF file of random weights is to be: a real model's shape, the type of its matrices, and what it answers."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, replace

from gguf_blocks import FILE_TYPES, possible
from gguf_cycle import Cycle, half_columns
from model_shapes import FIRST_ATTENDING, SHAPES, Latents, MambaHeads, Shape
from whole_files import MOST_LAYERS, at_least_one

GPT_OSS = Shape("GptOssForCausalLM", "gpt-oss", 2880, 24, 64, 8, 64, 2880, 201088, False, 128, 32, 4, 2880)
_GRANITE = ("GraniteMoeHybridForCausalLM", "granitemoehybrid")
GRANITE_TINY = Shape(
    *(*_GRANITE, 1536, 40, 12, 4, 128, 512, 100352, True, 0, 64, 6, 512), shared_ffn=1024, mamba=MambaHeads(48)
)
GRANITE_SMALL = Shape(
    *(*_GRANITE, 4096, 40, 32, 8, 128, 768, 100352, True, 0, 72, 10, 768), shared_ffn=1536, mamba=MambaHeads(128)
)
GLM_FLASH = Shape(
    *("Glm4MoeLiteForCausalLM", "glm4_moe_lite", 2048, 47, 20, 20, 256, 10240, 154880, False, 0, 64, 4, 1536),
    shared_ffn=1536,
    dense_layers=1,
    latents=Latents(query=768, kept=512, plain=192, rotary=64, value=256),
)
GGUF_SHAPES = ChainMap(
    SHAPES,
    {
        "gpt-oss-20b": GPT_OSS,
        "granite4-h-tiny": GRANITE_TINY,
        "granite4-h-small": GRANITE_SMALL,
        "glm-4.7-flash": GLM_FLASH,
    },
)
_WITHOUT_QUERY_LATENTS = (26, 27)  # layers by which llama.cpp knows those of DeepSeek's models that have none
EMBEDDINGS = dict.fromkeys(("Q4_0", "Q2_K", "Q3_K", "Q4_K", "IQ1_S", "IQ2_XS", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "Q6_K")
FIRST_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>")
SMALLEST_VOCABULARY = len(FIRST_TOKENS) + 256  # those, and all bytes


@dataclass(frozen=True, slots=True)
class RandomModel:
    """What a file is to hold: a shape and the type of its matrices."""

    name: str
    shape: Shape
    type: str
    cycle: Cycle | None = None

    @classmethod
    def parse(cls, text: str) -> RandomModel:
        """Read SHAPE:TYPE or SHAPE:TYPE:LAYERS.

        Raises:
            ValueError: there is no such shape or type, or no layer, or none that attends beside those of Mamba-2, or
                as many as make another model of it.
        """
        name, _, rest = text.partition(":")
        kind, _, layers = rest.partition(":")
        if name not in GGUF_SHAPES or kind not in FILE_TYPES or (kind == "MXFP4" and not GGUF_SHAPES[name].experts):
            raise ValueError(
                f"{text}: expected SHAPE:TYPE of {', '.join(GGUF_SHAPES)} and {', '.join(FILE_TYPES)}, the last of "
                "mixtures alone"
            )
        shape = GGUF_SHAPES[name]
        if rest != kind:
            shape = replace(shape, layers=at_least_one(f"{text}: layers", layers, MOST_LAYERS))
        if shape.mamba is not None and shape.layers <= FIRST_ATTENDING:
            least = FIRST_ATTENDING + 1
            raise ValueError(f"{text}: layers: expected {least} or more, of which one attends, got {shape.layers}")
        if shape.latents is not None and shape.layers in _WITHOUT_QUERY_LATENTS:
            raise ValueError(f"{text}: layers: llama.cpp takes models of {shape.layers} for ones without query latents")
        return cls(name, shape, kind)

    def with_vocabulary(self, size: int) -> RandomModel:
        """Return it with another vocabulary.

        Raises:
            ValueError: that has no room for all bytes.
        """
        if size < SMALLEST_VOCABULARY:
            raise ValueError(f"vocabulary: expected {SMALLEST_VOCABULARY} tokens or more, got {size}")
        at_least_one("vocabulary", str(size))
        return replace(self, shape=replace(self.shape, vocab=size))

    def with_cycle(self, share: float, predicted: float | None) -> RandomModel:
        """Return one whose answers follow a cycle behind a share of tokens, and its predicting layer's if it is to.

        Raises:
            ValueError: there are no such shares, or there is no way to make one of its shape.
        """
        if self.shape.ranks is not None or self.shape.model_type == "gpt-oss":
            raise ValueError(f"{self.name}: its layers have biases, and add to what comes to them")
        if predicted is not None and self.shape.linear is None:
            raise ValueError(f"{self.name}: it has no layer that predicts a token more")
        if predicted is not None:
            half_columns(self.embeddings, self.shape.hidden)
        cycle = Cycle(len(FIRST_TOKENS), share, predicted)
        return replace(self, shape=replace(self.shape, tied=False), cycle=cycle)

    @property
    def num_predictors(self) -> int:
        """Layers behind the last that predict a token more."""
        return int(self.cycle is not None and self.cycle.predicted is not None)

    @property
    def plain(self) -> str:
        """The type of what experts do not have."""
        return "Q8_0" if self.type == "MXFP4" else self.type

    @property
    def embeddings(self) -> str:
        """The type of both tables."""
        return possible(EMBEDDINGS.get(self.type, self.plain), self.shape.hidden)
