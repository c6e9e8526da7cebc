"""A model's memory: planned before anything is allocated, then allocated and reported."""
