"""Architectures: what config.json means, which tensors a model has, and how a step is recorded."""
