"""Tokenizers that GGUF files describe in their metadata."""
