"""What becomes of a checkpoint's tensors on the device, and where each lies. Pure."""
