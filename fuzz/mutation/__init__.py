"""Mutation testing of the bounds checks: for each comparison, some test has to fail when it is wrong.

``python -m mutation`` from the root of the repository; ``make mutation`` in its environment.
"""
