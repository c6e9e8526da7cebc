"""Families of models: a file each reads their configurations."""
