"""Directories whose weights are quantised already, by what published them: which tensors make which matrix. Pure."""
