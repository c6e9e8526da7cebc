"""A step on the device: its arguments, its recorded commands, its submission and its results."""
