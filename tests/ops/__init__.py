"""Tests of the kernel families, each against a NumPy reference."""
