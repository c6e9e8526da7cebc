"""Tests of the scheduler; none needs a GPU."""
