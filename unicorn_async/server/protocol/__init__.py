"""The wire formats as pure code: bodies and events in, objects and events out; no I/O here."""
