"""LoRA adapters: their files, and which weights they change."""
