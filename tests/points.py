"""Exceptions where a signal can raise one.

CPython asks for signals when a function of Python begins and after a call of C (and at jumps back). By default an
exception is raised at some of these points; WEIGHTMAP_INTERRUPTIONS=all is all of them.
"""

import os
import sys

EACH = 1 if os.environ.get("WEIGHTMAP_INTERRUPTIONS") == "all" else 11


class Interruption(BaseException):
    """Nobody catches it."""


class Interrupter:
    """Raises `Interruption` at the point of this number, from 0 on; counts the points."""

    def __init__(self, number=-1):
        self.number, self.count = number, 0

    def point(self):
        self.count += 1
        if self.count - 1 == self.number:
            raise Interruption

    def profile(self, _, event, __):
        if event in {"call", "c_return"}:
            self.point()

    def run(self, call):
        """Call, and return whether it was interrupted."""
        sys.setprofile(self.profile)
        try:
            call()
        except Interruption:
            return True
        finally:
            sys.setprofile(None)
        return False
