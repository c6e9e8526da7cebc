"""Every error that this package raises on purpose.

UnicornError
├── ConfigError                 an option, a file name or a combination of them that can't work
├── CheckpointError             a model on disk that is damaged, incomplete or contradicts itself
│   └── UnsupportedModelError   a sound model of a kind that is not supported
├── TokenizerError              tokenizer.json or a chat template that can't be used
├── DeviceError                 a GPU or NPU that is absent, not permitted, or lacks what is needed
│   ├── VulkanUnavailableError  no loader, no driver, or no device of the wanted kind
│   ├── MissingFeatureError     the device lacks a feature that an operation needs
│   ├── OutOfMemoryError        an allocation, or the model as a whole, does not fit
│   └── DeviceLostError         the driver gave up on the device
├── RequestError                a request that is refused; the server goes on
│   ├── PromptTooLongError      prompt and answer exceed the context
│   └── QueueFullError          too many requests wait already
└── EngineClosedError           the engine was closed while the call waited
"""

from __future__ import annotations


class UnicornError(Exception):
    """Base class of all errors of this package."""


class ConfigError(UnicornError):
    """An option, a file name or a combination of them can't work."""


class CheckpointError(UnicornError):
    """A model on disk is damaged, incomplete or contradicts itself."""


class UnsupportedModelError(CheckpointError):
    """A sound model is of a kind that is not supported."""


class TokenizerError(UnicornError):
    """A tokenizer or a chat template can't be used."""


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


class RequestError(UnicornError):
    """A request is refused; the engine and its other requests go on."""


class PromptTooLongError(RequestError):
    """A prompt, or a prompt with its answer, exceeds the model's context."""


class QueueFullError(RequestError):
    """Too many requests wait already."""


class EngineClosedError(UnicornError):
    """The engine was closed while the call waited."""
