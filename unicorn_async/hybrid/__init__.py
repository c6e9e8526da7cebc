"""Attention on another device than the one that runs the rest of the model, and the steps that use both."""
