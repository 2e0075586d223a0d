"""Fuzzing: millions of damaged files, each told by its format and a number, and what must not come of any of them."""
