"""The bundled model without its last layers: a draft of the same vocabulary that is right now and then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import unicorn_async
from tests.checkpoint.builders import with_header

MODEL = Path(unicorn_async.__file__).parent / "demo" / "model"


def write_cut(directory: Path, num_layers: int) -> Path:
    """Write the model's first layers between its embeddings and its last norm; return the directory."""
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(MODEL / name, directory / name)
    config = json.loads((MODEL / "config.json").read_text())
    config |= {"num_hidden_layers": num_layers, "layer_types": config["layer_types"][:num_layers]}
    (directory / "config.json").write_text(json.dumps(config))
    content = (MODEL / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, object]] = {}
    data = b""
    for name, entry in json.loads(content[8:start]).items():
        parts = name.split(".")
        if name == "__metadata__" or ("layers" in parts and int(parts[parts.index("layers") + 1]) >= num_layers):
            continue
        first, stop = entry["data_offsets"]
        header[name] = entry | {"data_offsets": [len(data), len(data) + stop - first]}
        data += content[start + first : start + stop]
    (directory / "model.safetensors").write_bytes(with_header(json.dumps(header).encode(), data))
    return directory
