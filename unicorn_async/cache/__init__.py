"""The cache of device-ready weights on disk."""
