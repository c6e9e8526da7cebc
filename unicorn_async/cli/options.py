"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Literal

from unicorn_async.cli.adapters import add_lora_option
from unicorn_async.config import (
    AttentionTarget,
    EngineConfig,
    ExchangeKind,
    KVDType,
    SpeculationMode,
    SplitMode,
    WeightScheme,
)
from unicorn_async.errors import ConfigError
from unicorn_async.pooling import Pooling
from unicorn_async.sampling_params import SamplingParams

_SAME_NAMES = (  # as in EngineConfig
    "device",
    "model_name",
    "max_context",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_bytes",
    "vram_bytes",
    "gtt_bytes",
    "cache_bytes",
    "kv_host_bytes",
    "kv_disk_bytes",
    "load_trace",
    "step_trace",
    "attention",
    "attention_split",
    "attention_exchange",
    "kv_dtype",
    "weights",
    "speculation",
    "draft",
    "pooling",
    "validation",
)
DEVICE_HELP = "index or part of the name, see `unicorn devices` (default: the fastest GPU that has room)"
CONTEXT_HELP = "prompt and answer together (default: as the model and the memory allow)"
CACHE_HELP = "limit of the KV cache, e.g. 4G (default: what is left of the memory, within reason)"
MODEL_HELP = "a directory in Hugging Face's layout or its name in their cache, a GGUF file, or `demo` (bundled)"


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what an engine is opened with."""
    group = add_planning_options(parser)
    group.add_argument("--model-name", metavar="NAME", help="name to show (default: the directory's)")
    group.add_argument(
        "--no-prefix-cache", action="store_true", help="compute every prompt from its start, whatever was there before"
    )
    group.add_argument(
        "--kv-host",
        dest="kv_host_bytes",
        type=byte_size,
        metavar="SIZE",
        help="of the host's memory, for what prompts have in common and the GPU has no room for (default: none)",
    )
    group.add_argument(
        "--kv-disk",
        dest="kv_disk_bytes",
        type=byte_size,
        metavar="SIZE",
        help="of the disk, for the same, for all models together: later starts find what was computed of prompts, and"
        " so may who reads the user's cache folder (default: none)",
    )
    group.add_argument(
        "--speculation",
        choices=[mode.value for mode in SpeculationMode],
        help="what proposes tokens, of which a step checks several: lookup, in the text so far alone, or off (default"
        " auto: where that can be, the text and MODEL's own layer that predicts); it changes no token",
    )
    group.add_argument(
        "--draft",
        metavar="MODEL",
        help="a smaller model of the same vocabulary that proposes tokens, too, where that is measured to be faster; it"
        " lies on the same device beside MODEL (default: MODEL's own layer that predicts, where its files have one;"
        " none: neither)",
    )
    group.add_argument(
        "--pooling",
        choices=[kind.value for kind in Pooling],
        help="what an embedding is made of: mean, of all tokens' hidden states, or the last one (default: as the"
        " model's files say, else mean)",
    )
    group.add_argument("--no-tuning", action="store_true", help="choose kernels by rules, whatever was measured")
    group.add_argument(
        "--load-trace",
        metavar="FILE",
        help="write a trace of the load, for the Perfetto UI; each load of a server replaces it",
    )
    group.add_argument(
        "--attention-split",
        choices=[mode.value for mode in SplitMode],
        help="with attention elsewhere: whether halves of a step alternate between the two devices (default auto:"
        " where it was measured to be faster)",
    )
    group.add_argument(
        "--attention-exchange",
        choices=[kind.value for kind in ExchangeKind],
        help="with attention elsewhere: one memory that both devices share, or copies (default: shared if it can be)",
    )
    group.add_argument(
        "--step-trace",
        metavar="FILE",
        help="with attention elsewhere: write what both devices did in the last steps, for the Perfetto UI",
    )
    group.add_argument(
        "--max-mixed-step",
        type=step_seconds,
        metavar="SECONDS",
        help="how long a step with prompts may keep answers under way waiting (default auto; 0 = no limit)",
    )
    group.add_argument("--validation", action="store_true", help="switch on Vulkan's validation layers")


def add_planning_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add what decides how a model is loaded and where it lies; returns their group."""
    group = parser.add_argument_group("engine")
    group.add_argument("--device", metavar="DEVICE", help=DEVICE_HELP)
    group.add_argument(
        "--attention",
        type=attention_target,
        metavar="WHERE",
        help="what attends and has the KV cache: gpu, which is the device that runs the model, vulkan:DEVICE, npu, or"
        " auto: gpu, or npu where steps are faster with it, and why (default gpu)",
    )
    group.add_argument("--max-context", type=count, metavar="TOKENS", help=CONTEXT_HELP)
    group.add_argument(
        "--max-num-seqs",
        type=count,
        metavar="N",
        help="sequences in one step (default 32, fewer where what a model keeps of each takes much memory)",
    )
    group.add_argument("--max-num-batched-tokens", type=count, metavar="N", help="tokens in one step (default 512)")
    group.add_argument(
        "--weights",
        choices=[scheme.value for scheme in WeightScheme],
        help="what weights become while they are loaded (default auto: what they are)",
    )
    add_lora_option(group)
    group.add_argument(
        "--kv-dtype",
        choices=[kind.value for kind in KVDType],
        help="elements of the KV cache (default f16); int8 takes 17/32 of its room, and rounds",
    )
    group.add_argument("--kv-cache-bytes", type=byte_size, metavar="SIZE", help=CACHE_HELP)
    group.add_argument(
        "--vram",
        dest="vram_bytes",
        type=byte_size,
        metavar="SIZE",
        help="use at most so much of the GPU's own memory, e.g. 6G (default: what is free)",
    )
    group.add_argument(
        "--gtt",
        dest="gtt_bytes",
        type=byte_size,
        metavar="SIZE",
        help="use at most so much of the host's memory (default: what is free on a GPU that shares it; none on others,"
        " which read it over the bus, slowly)",
    )
    group.add_argument("--reader-threads", type=count, metavar="N", help="threads that read files (default: by cores)")
    group.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of quantised weights")
    group.add_argument(
        "--cache-bytes",
        type=byte_size,
        metavar="SIZE",
        help="limit of the cache of quantised weights (default 64G, at most half of the disk's free space)",
    )
    return group


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Return the engine's configuration; what a command has no option for is as it is without one."""
    given = {name: value for name in _SAME_NAMES if (value := getattr(options, name, None)) is not None}
    given |= {"num_reader_threads": options.reader_threads, "weight_cache": not options.no_cache}
    given |= {"tuning": not getattr(options, "no_tuning", False)}
    given |= {"prefix_cache": not getattr(options, "no_prefix_cache", False)}
    config = EngineConfig(loras=tuple(options.lora), **given)
    max_mixed_step_s = getattr(options, "max_mixed_step", None)
    return config if max_mixed_step_s is None else replace(config, max_mixed_step_s=max_mixed_step_s or None)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add how tokens are chosen."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=count, default=512, metavar="N")
    group.add_argument("--temperature", type=float, default=0.0, help="0 = greedy (default)")
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--repetition-penalty", type=float, default=1.0)
    group.add_argument("--presence-penalty", type=float, default=0.0)
    group.add_argument("--frequency-penalty", type=float, default=0.0)
    group.add_argument("--seed", type=int)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be given several times")
    group.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: log-probabilities of each token and of the N likeliest"
    )


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    """Return the sampling parameters."""
    return SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
        stop=tuple(options.stop),
        top_logprobs=options.logprobs,
    )


def byte_size(text: str) -> int:
    """Parse 512M, 4G or a plain number of bytes."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    shift = units.get(text[-1:].upper(), 0)
    try:
        value = float(text[:-1] if shift else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a size such as 512M or 4G, got {text!r}") from None
    if not 0 < value < float(1 << 50):
        raise argparse.ArgumentTypeError(f"expected a positive size, got {text!r}")
    return int(value * (1 << shift))


def attention_target(text: str) -> AttentionTarget:
    """Parse gpu, npu, auto or vulkan:DEVICE."""
    try:
        return AttentionTarget.parse(text)
    except ConfigError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def step_seconds(text: str) -> float | Literal["auto"]:
    """Parse seconds, 0 to an hour, or auto."""
    return "auto" if text == "auto" else _seconds(text, "expected seconds, 0 to 3600, or auto")


def seconds(text: str) -> float:
    """Parse seconds, 0 to an hour."""
    return _seconds(text, "expected seconds, 0 to 3600")


def _seconds(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return value


def count(text: str) -> int:
    """Parse a positive whole number."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def port_number(text: str) -> int:
    """Parse a port, 0 to 65535."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to 65535, got {text!r}")
    return int(text)
