"""Quantised tensors and their schemes."""
