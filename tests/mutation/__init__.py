"""Mutation testing of the bounds checks: is there a test that fails, for each comparison, when it is wrong?

``python -m tests.mutation`` from the root of the repository; ``make mutation`` in its environment.
"""
