"""Serves large language models on the GPU you own.

What this package lists in `__all__` is its public interface; everything else is private, and may change with any
version. A name's module is imported when the name is first asked for: what a program doesn't use, it doesn't wait for,
and a command begins with the opening of the device.
"""

TYPE_CHECKING = False  # checkers take it for true; the module `typing` is long to import in front of everything else

if TYPE_CHECKING:
    from unicorn_async.cache.lookup import CacheState, CacheStatus
    from unicorn_async.config import (
        AttentionKind,
        AttentionTarget,
        EngineConfig,
        ExchangeKind,
        KVDType,
        SplitMode,
        WeightScheme,
    )
    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.types import AdapterInfo, DraftInfo, EngineStats, Token
    from unicorn_async.errors import (
        CacheError,
        CheckpointError,
        ConfigError,
        DeviceError,
        DeviceLostError,
        DownloadError,
        EngineClosedError,
        EngineFailedError,
        GrammarBusyError,
        GrammarError,
        GrammarLostError,
        MissingFeatureError,
        ModelNotFoundError,
        NpuBuildError,
        NpuBusyError,
        NpuContextLostError,
        NpuError,
        NpuSelfCheckError,
        NpuTimeoutError,
        NpuUnavailableError,
        OutOfMemoryError,
        ParameterError,
        PromptTooLongError,
        QueueFullError,
        RequestError,
        TokenizerError,
        TokenizerLostError,
        TuningError,
        UnicornError,
        UnsupportedModelError,
        VulkanUnavailableError,
    )
    from unicorn_async.gpu.device_info import DeviceInfo, DeviceType
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.grammar import Grammar, GrammarKind
    from unicorn_async.hybrid.report import AttentionInfo, AttentionStats
    from unicorn_async.kv_store.report import KVStoreStats
    from unicorn_async.loader.progress import LoadProgress
    from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
    from unicorn_async.lora_spec import LoraSpec
    from unicorn_async.memory.report import HeapReport, MemoryReport
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.scheduler.request import FinishReason
    from unicorn_async.step.kernel_times import KernelTime
    from unicorn_async.tokenizer.message import ChatMessage, ToolCall
    from unicorn_async.tokenizer.tokenizer import Tokenizer

__all__ = [
    "AdapterInfo",
    "AttentionInfo",
    "AttentionKind",
    "AttentionStats",
    "AttentionTarget",
    "CacheError",
    "CacheState",
    "CacheStatus",
    "ChatMessage",
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceType",
    "DownloadError",
    "DraftInfo",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineFailedError",
    "EngineStats",
    "ExchangeKind",
    "FinishReason",
    "Grammar",
    "GrammarBusyError",
    "GrammarError",
    "GrammarKind",
    "GrammarLostError",
    "HeapReport",
    "InstanceStart",
    "KVDType",
    "KVStoreStats",
    "KernelTime",
    "LoadProgress",
    "LoraSpec",
    "MemoryReport",
    "MissingFeatureError",
    "ModelNotFoundError",
    "ModelSpec",
    "NpuBuildError",
    "NpuBusyError",
    "NpuContextLostError",
    "NpuError",
    "NpuSelfCheckError",
    "NpuTimeoutError",
    "NpuUnavailableError",
    "OutOfMemoryError",
    "ParameterError",
    "PromptTooLongError",
    "QueueFullError",
    "ReadMode",
    "ReadStrategy",
    "RequestError",
    "SamplingParams",
    "SplitMode",
    "Token",
    "Tokenizer",
    "TokenizerError",
    "TokenizerLostError",
    "ToolCall",
    "TuningError",
    "UnicornError",
    "UnsupportedModelError",
    "VulkanUnavailableError",
    "WeightScheme",
]

_MODULES = {  # by name; those of errors alone are not there
    "AdapterInfo": "engine.types",
    "DraftInfo": "engine.types",
    "AttentionInfo": "hybrid.report",
    "AttentionKind": "config",
    "AttentionStats": "hybrid.report",
    "AttentionTarget": "config",
    "CacheState": "cache.lookup",
    "CacheStatus": "cache.lookup",
    "ChatMessage": "tokenizer.message",
    "DeviceInfo": "gpu.device_info",
    "DeviceType": "gpu.device_info",
    "Engine": "engine.engine",
    "EngineConfig": "config",
    "EngineStats": "engine.types",
    "ExchangeKind": "config",
    "FinishReason": "scheduler.request",
    "Grammar": "grammar",
    "GrammarKind": "grammar",
    "HeapReport": "memory.report",
    "InstanceStart": "gpu.instance_start",
    "KVDType": "config",
    "KVStoreStats": "kv_store.report",
    "KernelTime": "step.kernel_times",
    "LoadProgress": "loader.progress",
    "LoraSpec": "lora_spec",
    "MemoryReport": "memory.report",
    "ModelSpec": "models.spec",
    "ReadMode": "loader.read_strategy",
    "ReadStrategy": "loader.read_strategy",
    "SamplingParams": "sampling_params",
    "SplitMode": "config",
    "Token": "engine.types",
    "Tokenizer": "tokenizer.tokenizer",
    "ToolCall": "tokenizer.message",
    "WeightScheme": "config",
}


if not TYPE_CHECKING:  # or checkers would believe that there is every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
