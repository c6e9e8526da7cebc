"""Continuous batching over a paged KV cache, decided in pure code: no asyncio, no Vulkan."""
