#!/usr/bin/env python3
"""Write a GGUF file with random weights in the shapes of a real model, that llama.cpp loads too.

    tools/make_gguf.py SHAPE:TYPE[:LAYERS] FILE [--vocab N] [--cycle [SHARE] [--predictor SHARE]]

e.g. gemma3-27b:Q4_0. Nothing in it is trained: the answers mean nothing, and neither do measurements of quality, of how
often proposed tokens are right, or of which experts tokens choose. With `--cycle` each token is followed by the next
one, and is so behind a share of tokens alone in a model that is to draft to another of the same vocabulary, or by
`--predictor` in a layer of the model's own: gguf_cycle.py says how. What proposals gain can be measured with these.

Shapes are those of tools/make_checkpoint.py, mixtures of experts and RWKV-7 among them, and gpt-oss-20b; types F16,
Q8_0, Q4_0, Q4_K, Q3_K, Q2_K, IQ4_XS, IQ3_S, IQ3_XXS, IQ2_XS, IQ1_S and MXFP4. Of MXFP4 are experts alone, beside
matrices of Q8_0, as in the files of gpt-oss. Embeddings are Q6_K beside the other types of 4 bits and fewer, as
llama.cpp's own files mostly have them; rows that are no multiple of 256 take the type that llama.cpp would. Blocks are
drawn once for 32 MiB of each type and repeated from there, so that writing runs at the speed of the disk. The
vocabulary is that of bytes, filled up with words that mean nothing to the size that the model's has, or `--vocab`.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf_blocks import BLOCKS, FILE_TYPES, possible, random_blocks
from gguf_cycle import FIRST_KEY, Cycle, Fill, Tables, half_columns, leaves, projection
from gguf_fields import text, typed
from gguf_recurrent import linear_keys, linear_tensors, rwkv_keys, rwkv_tensors, shared_tensors
from model_shapes import SHAPES, Shape
from whole_files import at_least_one, whole_file

POOL_BYTES = 32 << 20
ALIGNMENT = 32
GPT_OSS = Shape("GptOssForCausalLM", "gpt-oss", 2880, 24, 64, 8, 64, 2880, 201088, False, 128, 32, 4, 2880)
GGUF_SHAPES = ChainMap(SHAPES, {"gpt-oss-20b": GPT_OSS})
EMBEDDINGS = dict.fromkeys(("Q4_0", "Q2_K", "Q3_K", "Q4_K", "IQ1_S", "IQ2_XS", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "Q6_K")
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
FIRST_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>")
TABLES = ("token_embd", "output")
TABLE_NAMES = tuple(f"{name}.weight" for name in TABLES)
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
            ValueError: there is no such shape or type, or no layer.
        """
        name, _, rest = text.partition(":")
        kind, _, layers = rest.partition(":")
        if name not in GGUF_SHAPES or kind not in FILE_TYPES or (kind == "MXFP4" and not GGUF_SHAPES[name].experts):
            raise ValueError(
                f"{text}: expected SHAPE:TYPE of {', '.join(GGUF_SHAPES)} and {', '.join(FILE_TYPES)}, the last of "
                "mixtures alone"
            )
        shape, is_whole = GGUF_SHAPES[name], not rest.removeprefix(kind)
        return cls(name, shape if is_whole else replace(shape, layers=at_least_one(f"{text}: layers", layers)), kind)

    def with_vocabulary(self, size: int) -> RandomModel:
        """Return it with another vocabulary.

        Raises:
            ValueError: that has no room for all bytes.
        """
        if size < SMALLEST_VOCABULARY:
            raise ValueError(f"vocabulary: expected {SMALLEST_VOCABULARY} tokens or more, got {size}")
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
    def embeddings(self) -> str:
        """The type of both tables."""
        kind = EMBEDDINGS.get(self.type, "Q8_0" if self.type == "MXFP4" else self.type)
        return possible(kind, self.shape.hidden)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of the file; of one dimension are ones, unless there are `bounds` between which values are drawn."""

    name: str
    shape: tuple[int, ...]  # rows before columns, experts before both
    type: str
    bounds: tuple[float, float] | None = None
    fill: Fill = Fill.RANDOM

    @property
    def is_norm(self) -> bool:
        return len(self.shape) == 1 and self.bounds is None

    @property
    def pool(self) -> tuple[object, ...]:
        """What it has in common with those that are filled with the same bytes."""
        return self.type, self.shape if self.bounds else self.shape[-1:], self.is_norm, self.bounds, self.fill

    @property
    def nbytes(self) -> int:
        values, size, _ = BLOCKS[self.type]
        return int(np.prod(self.shape)) // values * size


def tensors(model: RandomModel) -> list[Matrix]:
    """Return all tensors in their order."""
    shape, found = model.shape, []
    plain = "Q8_0" if model.type == "MXFP4" else model.type
    is_gpt_oss = shape.model_type == "gpt-oss"
    before_ffn = "post_attention_norm" if is_gpt_oss or shape.linear else "ffn_norm"

    def matrix(name: str, *dims: int, kind: str = plain) -> None:
        fill = Fill.NOTHING if model.cycle is not None and leaves(name) else Fill.RANDOM
        found.append(Matrix(f"{name}.weight", dims, possible(kind, dims[-1]), fill=fill))

    def norm(name: str, size: int) -> None:
        found.append(Matrix(f"{name}.weight", (size,), "F32"))

    def bias(name: str, *dims: int) -> None:
        if is_gpt_oss:
            found.append(Matrix(f"{name}.bias", dims, "F32"))

    def drawn(name: str, dims: tuple[int, ...], bounds: tuple[float, float] | None) -> None:
        if bounds is None:
            matrix(name, *dims, kind=embeddings if name in TABLES else plain)
        else:
            found.append(Matrix(name, dims, "F32", bounds))

    hidden, embeddings = shape.hidden, model.embeddings
    if shape.ranks is not None:
        for named in rwkv_tensors(shape, shape.ranks):
            drawn(*named)
        return found
    columns_out, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrix("token_embd", shape.vocab, hidden, kind=embeddings)
    norm("output_norm", hidden)
    if not shape.tied:
        matrix("output", shape.vocab, hidden, kind=embeddings)
    gemma = shape.model_type.startswith("gemma3")
    for layer in range(shape.layers + model.num_predictors):
        base, is_predictor = f"blk.{layer}.", layer == shape.layers
        if is_predictor:
            for name in ("enorm", "hnorm", "shared_head_norm"):
                norm(f"{base}nextn.{name}", hidden)
            found.append(Matrix(f"{base}nextn.eh_proj.weight", (hidden, 2 * hidden), "Q8_0", fill=Fill.PROJECTION))
        for name in ("attn_norm", before_ffn, *(("post_attention_norm", "post_ffw_norm") if gemma else ())):
            norm(base + name, hidden)
        if is_gpt_oss:
            norm(base + "attn_sinks", shape.heads)
        if shape.linear is not None and not (is_predictor or shape.attends(layer)):
            for name, dims, bounds in linear_tensors(shape, shape.linear):
                drawn(base + name, dims, bounds)
        else:
            for name in ("attn_q_norm", "attn_k_norm") if shape.norms_heads else ():
                norm(base + name, shape.head_dim)
            for name, rows, columns in (
                ("attn_q", shape.query_rows, hidden),
                ("attn_k", keys, hidden),
                ("attn_v", keys, hidden),
                ("attn_output", hidden, columns_out),
            ):
                matrix(base + name, rows, columns)
                bias(base + name, rows)
        if shape.experts:
            matrix(base + "ffn_gate_inp", shape.experts, hidden, kind="F32")
            bias(base + "ffn_gate_inp", shape.experts)
        if shape.shared_ffn:
            drawn(base + "ffn_gate_inp_shexp.weight", (hidden,), (-(hidden**-0.5), hidden**-0.5))
            for name, rows, columns in shared_tensors(shape):
                matrix(base + name, rows, columns)
        experts, ending = ((shape.experts,), "_exps") if shape.experts else ((), "")
        ffn = shape.expert_ffn if shape.experts else shape.ffn
        for name, rows, columns in (("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)):
            matrix(base + name + ending, *experts, rows, columns, kind=model.type)
            bias(base + name + ending, *experts, rows)
    return found


def metadata(model: RandomModel) -> dict[str, Any]:
    """Return the file's keys: int as u32, float as f32, str, bool, and lists of str, float and int (as i32)."""
    shape = model.shape
    arch = "gemma3" if shape.model_type.startswith("gemma3") else shape.model_type.replace("_", "")
    if shape.linear is not None:
        arch = "qwen35moe" if shape.experts else "qwen35"
    is_gpt_oss = arch == "gpt-oss"
    keys: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": f"random {model.name}",
        "general.file_type": FILE_TYPES[model.type],
        "general.quantization_version": 2,
        f"{arch}.context_length": 131072,
        f"{arch}.embedding_length": shape.hidden,
        f"{arch}.block_count": shape.layers + model.num_predictors,
        f"{arch}.feed_forward_length": shape.ffn,
        f"{arch}.vocab_size": shape.vocab,
    }
    keys |= {f"{arch}.{name}": value for name, value in attention_keys(shape).items()}
    if arch == "llama":
        keys["llama.rope.dimension_count"] = shape.head_dim
    if shape.experts:
        keys |= {f"{arch}.expert_count": shape.experts, f"{arch}.expert_used_count": shape.experts_used}
        keys |= {f"{arch}.expert_feed_forward_length": shape.expert_ffn}
    if shape.linear is not None:
        keys |= {f"{arch}.{name}": value for name, value in linear_keys(shape, shape.linear).items()}
    if model.cycle is not None:
        keys |= {FIRST_KEY: model.cycle.first}
    if model.num_predictors:
        keys |= {f"{arch}.nextn_predict_layers": model.num_predictors}
    if is_gpt_oss:
        keys |= {f"{arch}.attention.sliding_window": shape.window, f"{arch}.rope.scaling.type": "yarn"}
        keys |= {f"{arch}.rope.scaling.factor": 32.0, f"{arch}.rope.scaling.original_context_length": 4096}
    elif shape.window:
        keys |= {"gemma3.attention.sliding_window": shape.window}
        keys |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    tokens = [*FIRST_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\N{LOWER ONE EIGHTH BLOCK}t{index}" for index in range(len(tokens), shape.vocab)]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[BYTE] * 256]
    return keys | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(index) for index in range(shape.vocab)],
        "tokenizer.ggml.token_type": kinds + [NORMAL] * (shape.vocab - len(kinds)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}\n{% endfor %}",
    }


def attention_keys(shape: Shape) -> dict[str, Any]:
    """Return keys without the architecture in front."""
    if shape.ranks is not None:
        return rwkv_keys(shape, shape.ranks)
    return {
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1.5e5 if shape.model_type == "gpt-oss" else 1e6 if shape.window else 5e5,
    }


def header(model: RandomModel, matrices: list[Matrix]) -> bytes:
    """Everything before the first tensor's data."""
    keys = metadata(model)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(matrices), len(keys))]
    parts += [text(name) + typed(value) for name, value in keys.items()]
    offset = 0
    for matrix in matrices:
        dims = matrix.shape[::-1]
        parts.append(text(matrix.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        parts.append(struct.pack("<IQ", BLOCKS[matrix.type][2], offset))
        offset += aligned(matrix.nbytes)
    data = b"".join(parts)
    return data.ljust(aligned(len(data)), b"\0")


def aligned(nbytes: int) -> int:
    """Round up to the file's alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def pooled(rng: np.random.Generator, model: RandomModel, matrix: Matrix) -> bytes:
    """Return what fills a matrix, and others like it, again and again."""
    if matrix.is_norm:
        return np.ones(matrix.shape[0], "<f4").tobytes()
    if matrix.bounds:
        return rng.uniform(*matrix.bounds, matrix.shape).astype("<f4").tobytes()
    if matrix.fill is Fill.PROJECTION:
        return projection(model.embeddings, model.shape.hidden)
    deviation = 0.0 if matrix.fill is Fill.NOTHING else matrix.shape[-1] ** -0.5
    return random_blocks(rng, matrix.type, deviation, POOL_BYTES // BLOCKS[matrix.type][1]).tobytes()


def write(model: RandomModel, path: Path) -> int:
    """Write the file; returns its size in bytes. Raises SystemExit as `whole_file` does."""
    matrices = tensors(model)
    head = header(model, matrices)
    rng, cycle = np.random.default_rng(27), model.cycle
    pools = {key: pooled(rng, model, matrix) for key, matrix in {matrix.pool: matrix for matrix in matrices}.items()}
    starts = np.cumsum([len(head), *(aligned(matrix.nbytes) for matrix in matrices)]).tolist()
    with whole_file(path, starts[-1]) as file:
        file.truncate(starts[-1])
        file.write(head)
        file.flush()

        def put(index: int) -> None:
            """Repeat the pool from another block on for each tensor."""
            matrix, position = matrices[index], starts[index]
            pool = memoryview(pools[matrix.pool])
            size, stop = BLOCKS[matrix.type][1], position + matrix.nbytes
            is_whole = matrix.is_norm or matrix.fill is Fill.PROJECTION
            begin = index * 7919 % (len(pool) // size) * size if not is_whole else 0
            while position < stop:
                done = os.pwrite(file.fileno(), pool[begin : begin + stop - position], position)
                position += done
                begin = (begin + done) % len(pool)

        others = [index for index, matrix in enumerate(matrices) if cycle is None or matrix.name not in TABLE_NAMES]
        at = [start for matrix, start in zip(matrices, starts[:-1], strict=True) if matrix.name in TABLE_NAMES]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            done = [threads.map(put, others)]
            if cycle is not None:
                tables = Tables(model.embeddings, model.shape.hidden, model.shape.vocab, cycle)
                done.append(threads.map(lambda first: tables.put(file.fileno(), at, first), tables.chunks))
            for results in done:
                list(results)
    return starts[-1]


def main() -> int:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a GGUF file with random weights in a real model's shapes.")
    parser.add_argument("model", help="SHAPE:TYPE or SHAPE:TYPE:LAYERS, e.g. gemma3-27b:Q4_0")
    parser.add_argument("file", type=Path)
    parser.add_argument("--vocab", type=int, help="another size of the vocabulary than the model has")
    parser.add_argument(
        "--cycle",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SHARE",
        help="answers follow a cycle of all tokens, behind this share of them (1)",
    )
    parser.add_argument(
        "--predictor",
        type=float,
        metavar="SHARE",
        help="with a layer that predicts a token more, right behind this share",
    )
    options = parser.parse_args()
    if options.predictor is not None and options.cycle is None:
        parser.error("--predictor: it says what is known of models with --cycle alone")
    try:
        model = RandomModel.parse(options.model)
        if options.vocab is not None:
            model = model.with_vocabulary(options.vocab)
        if options.cycle is not None:
            model = model.with_cycle(options.cycle, options.predictor)
    except ValueError as exc:
        parser.error(str(exc))
    print(f"{options.file}: {write(model, options.file) / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
