"""XRT: devices, contexts, buffers and runs of an AMD NPU, and attention on it. The one room that imports pyxrt."""
