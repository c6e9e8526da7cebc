"""Tools that a model may call: how each family writes its calls, grammars for them, and what is read of them. Pure."""
