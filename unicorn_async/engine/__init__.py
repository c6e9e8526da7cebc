"""The engine: a model on a device, requests in, streams of tokens out."""
