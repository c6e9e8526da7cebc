"""Every error that this package raises on purpose.

UnicornError
├── ConfigError                 an option, a file name or a combination of them that can't work
│   └── ModelNotFoundError      a model's name that means nothing here
├── DownloadError               a model that can't be brought from the hub
├── CheckpointError             a model on disk that is damaged, incomplete or contradicts itself
│   ├── UnsupportedModelError   a sound model of a kind that is not supported
│   └── CacheError              an entry of the weight cache that is damaged, or can't be written
├── TuningError                 a tuning table that is damaged, or can't be written
├── TokenizerError              tokenizer.json or a chat template that can't be used
│   └── TokenizerLostError      its process ended, and can't be had again
├── DeviceError                 a GPU or NPU that is absent, not permitted, or lacks what is needed
│   ├── VulkanUnavailableError  no loader, no driver, or no device of the wanted kind
│   ├── MissingFeatureError     the device lacks a feature that an operation needs
│   ├── OutOfMemoryError        an allocation, or the model as a whole, does not fit
│   ├── DeviceLostError         the driver gave up on the device
│   └── NpuError                the NPU, or XRT under it, can't do what is asked
│       ├── NpuUnavailableError no NPU, no driver, no permission, no XRT, or an XRT that does not fit
│       ├── NpuBuildError       no kernels for this chip, or a build of them that can't be used
│       ├── NpuBusyError        the NPU's contexts or columns are used up
│       ├── NpuSelfCheckError   the kernels' answer to a known question is wrong
│       ├── NpuTimeoutError     a run did not end in time
│       └── NpuContextLostError the driver gave up on a run and its context
├── RequestError                a request that is refused; the server goes on
│   ├── ParameterError          a sampling parameter that does not fit the model
│   ├── PromptTooLongError      prompt and answer exceed the context
│   ├── QueueFullError          too many requests wait already
│   └── GrammarError            a grammar that can't be used, or that an answer ran into the limits of
├── GrammarLostError            a process that follows grammars ended, or does not answer
├── GrammarBusyError            other grammars are compiled, for too long
├── EngineFailedError           a fault within the engine ended it
└── EngineClosedError           the engine was closed while the call waited
"""

from __future__ import annotations


class UnicornError(Exception):
    """Base class of all errors of this package."""


class ConfigError(UnicornError):
    """An option, a file name or a combination of them can't work."""


class ModelNotFoundError(ConfigError):
    """A name means no model of those that may be named."""


class DownloadError(UnicornError):
    """A model can't be brought from the hub, which is not reached, refuses, or sends something else than it has."""


class CheckpointError(UnicornError):
    """A model on disk is damaged, incomplete or contradicts itself."""


class UnsupportedModelError(CheckpointError):
    """A sound model is of a kind that is not supported."""


class CacheError(CheckpointError):
    """An entry of the weight cache is damaged, or can't be written; a load does without it."""


class TuningError(UnicornError):
    """A table of measured choices is damaged, or can't be written; an engine does without it."""


class TokenizerError(UnicornError):
    """A tokenizer or a chat template can't be used."""


class TokenizerLostError(TokenizerError):
    """A tokenizer's process has ended, and another one can't be had or ends as well."""


class DeviceError(UnicornError):
    """A GPU or NPU is absent, not permitted, or lacks what is needed."""


class VulkanUnavailableError(DeviceError):
    """There is no Vulkan loader, no driver, or no device of the wanted kind."""


class MissingFeatureError(DeviceError):
    """The device lacks a feature that an operation needs."""


class OutOfMemoryError(DeviceError):
    """An allocation, or the model as a whole, does not fit into the device's memory."""


class DeviceLostError(DeviceError):
    """The driver gave up on the device; the engine can't go on."""


class NpuError(DeviceError):
    """The NPU, or XRT under it, can't do what is asked."""


class NpuUnavailableError(NpuError):
    """There is no NPU, no driver, no permission, no XRT, or one of them does not fit."""


class NpuBuildError(NpuError):
    """There are no kernels for this chip, or a build of them that can't be used."""


class NpuBusyError(NpuError):
    """The NPU's contexts or columns are used up."""


class NpuSelfCheckError(NpuError):
    """The kernels' answer to a known question is wrong."""


class NpuTimeoutError(NpuError):
    """A run did not end in time."""


class NpuContextLostError(NpuError):
    """The driver gave up on a run and its context."""


class RequestError(UnicornError):
    """A request is refused; the engine and its other requests go on."""


class ParameterError(RequestError):
    """A sampling parameter does not fit the model; `parameter` is its name."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


class PromptTooLongError(RequestError):
    """A prompt, or a prompt with its answer, exceeds the model's context."""


class QueueFullError(RequestError):
    """Too many requests wait already."""


class GrammarError(RequestError):
    """A grammar is not well-formed, can't be fulfilled, or exceeds what is set for its size, or for a token's time."""


class GrammarLostError(UnicornError):
    """A process that follows grammars has ended, does not answer, or can't be started; the next one is started anew."""


class GrammarBusyError(UnicornError):
    """A grammar's turn to be compiled did not come in time: others are compiled."""


class EngineFailedError(UnicornError):
    """A fault within the engine ended it: its cause is the exception that it was."""


class EngineClosedError(UnicornError):
    """The engine was closed while the call waited."""
