"""The operations of a model, a file each: they check shapes, choose a kernel variant and record its dispatch."""
