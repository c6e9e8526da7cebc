"""Models that a fake library tells of: facts, and where they would lie."""

from __future__ import annotations

from tests.gpu.made_up import NVIDIA_WINDOW
from tests.memory.test_plan import HOST, INT4_8B, LLAMA_8B
from unicorn_async.config import EngineConfig
from unicorn_async.engine.model_facts import ModelFacts
from unicorn_async.engine.placement import DevicePlan
from unicorn_async.memory.plan import plan_memory

MISSING = "9,123,456 bytes of memory are missing. What would help: --weights int8 or int4"
PLAIN = ModelFacts(
    16_060_556_376, "safetensors", ("BF16",), False, 8_030_261_248, 32, 131_072, "LlamaForCausalLM", fits=True
)
QUANTISED = ModelFacts(
    7_300_000_000, "gguf", ("Q4_K", "Q6_K", "F32"), True, 12_187_325_040, 48, 131_072, "Gemma3ForCausalLM", fits=True
)
LARGE = ModelFacts(
    140_000_000_000, "safetensors", ("BF16",), False, 70_553_706_496, 80, 8192, "LlamaForCausalLM", False, MISSING
)
UNSUPPORTED = ModelFacts(
    5_000_000_000, "safetensors", problem="c/config.json: architectures ['OddForCausalLM'] is not supported"
)
FITS = (
    DevicePlan(
        NVIDIA_WINDOW,
        plan_memory(LLAMA_8B, EngineConfig(max_context=2048), INT4_8B, NVIDIA_WINDOW, host_bytes=HOST),
    ),
)
TOO_LARGE = (DevicePlan(NVIDIA_WINDOW, None, f"{NVIDIA_WINDOW.name}: {MISSING}"),)
