"""Fuzzing: millions of damaged files, each determined by its format and a number, and the forbidden outcomes."""
