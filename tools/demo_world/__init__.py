"""The small world that the demo model is trained on: conversations made from templates, never from a data set."""
