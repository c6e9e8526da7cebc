"""GGUF files: header, metadata as a configuration, tensors by the names that the models know."""
