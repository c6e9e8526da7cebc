"""Vulkan: devices, memory, kernels, recording, submission and completion. Knows nothing of models."""
