"""From a model on disk to tensors in device memory: checkpoint, plan, staging, stream."""
