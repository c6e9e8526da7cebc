"""Follows grammars: which tokens may come next, told by llguidance in a process of its own."""
