"""Measured choices of kernels, one table a device and driver."""
