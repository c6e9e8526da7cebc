"""Families of models, one file each: config.json becomes blocks."""
