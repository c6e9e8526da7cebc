"""A model's files: safetensors or GGUF, their headers, names and configurations, read as hostile input."""
