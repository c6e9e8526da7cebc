#!/usr/bin/env python3
"""Write a GGUF file with random weights in the shapes of a real model, that llama.cpp loads too.

    tools/make_gguf.py SHAPE:TYPE[:LAYERS] FILE [--vocab N] [--cycle [SHARE] [--predictor SHARE]]

e.g. gemma3-27b:Q4_0. Nothing in it is trained: the answers mean nothing, and neither do measurements of quality, of how
often proposed tokens are right, or of which experts tokens choose. With `--cycle` each token is followed by the next
one, and is so behind a share of tokens alone in a model that is to draft to another of the same vocabulary, or by
`--predictor` in a layer of the model's own: gguf_cycle.py says how. What proposals gain can be measured with these.

Shapes are those of tools/make_checkpoint.py, mixtures of experts and RWKV-7 among them, gpt-oss-20b, granite4-h-tiny,
granite4-h-small and glm-4.7-flash; types F16, Q8_0, Q4_0, Q4_K, Q3_K, Q2_K, IQ4_XS, IQ3_S, IQ3_XXS, IQ2_XS, IQ1_S and
MXFP4. Of MXFP4 are experts alone, beside matrices of Q8_0, as in the files of gpt-oss. Embeddings are Q6_K beside the
other types of 4 bits and fewer, as llama.cpp's own files mostly have them; rows that are no multiple of 256 take the
type that llama.cpp would. Blocks are drawn once for 32 MiB of each type and repeated from there, so that writing runs
at the speed of the disk. The vocabulary is that of bytes, filled up with words that mean nothing to the size that the
model's has, or `--vocab`.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from gguf_blocks import BLOCKS, random_blocks
from gguf_cycle import Fill, Tables, projection
from gguf_fields import text, typed
from gguf_keys import metadata
from gguf_model import RandomModel
from gguf_tensors import TABLE_NAMES, Matrix, tensors
from whole_files import whole_file

POOL_BYTES = 32 << 20
ALIGNMENT = 32


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
