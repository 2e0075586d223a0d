"""Tensors in a budget of memory, for models larger than memory."""
