"""The metadata of a GGUF file of random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gguf_blocks import FILE_TYPES
from gguf_cycle import FIRST_KEY
from gguf_latent import latent_keys
from gguf_model import FIRST_TOKENS
from gguf_recurrent import granite_keys, linear_keys, rwkv_keys

if TYPE_CHECKING:
    from gguf_model import RandomModel
    from model_shapes import Shape

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def metadata(model: RandomModel) -> dict[str, Any]:
    """Return the file's keys: int as u32, float as f32, str, bool, and lists of str, float and int (as i32)."""
    shape = model.shape
    arch = _architecture(shape)
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
    if shape.mamba is not None:
        keys |= {f"{arch}.{name}": value for name, value in granite_keys(shape, shape.mamba).items()}
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


def _architecture(shape: Shape) -> str:
    if shape.linear is not None:
        return "qwen35moe" if shape.experts else "qwen35"
    if shape.mamba is not None:
        return "granitehybrid"
    if shape.latents is not None:
        return "deepseek2"
    return "gemma3" if shape.model_type.startswith("gemma3") else shape.model_type.replace("_", "")


def attention_keys(shape: Shape) -> dict[str, Any]:
    """Return keys without the architecture in front."""
    if shape.ranks is not None:
        return rwkv_keys(shape, shape.ranks)
    if shape.latents is not None:
        return latent_keys(shape, shape.latents)
    return {
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1.5e5 if shape.model_type == "gpt-oss" else 1e6 if shape.window else 5e5,
    }
