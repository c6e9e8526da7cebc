"""The bundled demo model, in `model`: its card says what it is."""
