"""The blocks that models are made of, one file each."""
