"""Whole workflows, timed beside the tools that a user would use instead."""
