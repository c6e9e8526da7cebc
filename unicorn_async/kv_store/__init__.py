"""Blocks of the KV cache outside the device's memory: in the host's, and on a disk."""
