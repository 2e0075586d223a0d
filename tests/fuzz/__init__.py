"""Fuzzing: millions of damaged files, each given by its format and a number, and the outcomes that none may have."""
