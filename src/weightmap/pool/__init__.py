"""Tensors in memory of their own, for models larger than memory."""
