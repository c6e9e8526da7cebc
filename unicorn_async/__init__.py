"""Serves large language models on the GPU you own."""
