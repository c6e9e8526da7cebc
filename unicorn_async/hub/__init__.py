"""Models that come from the Hugging Face hub, when a user asks for them, and what its cache on this machine holds."""
