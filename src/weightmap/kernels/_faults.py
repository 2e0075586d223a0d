"""The faults that scans in C report: see wm_fault in kernels.h."""

from __future__ import annotations

from typing import Any

from weightmap.kernels._native import lib


class Fault:
    """A defect, as the numbers of a wm_fault."""

    __slots__ = ("actual", "at", "code", "expected", "row")

    def __init__(self, code: int, row: int, at: int, actual: int, expected: int) -> None:
        self.code = code
        self.row = row
        self.at = at
        self.actual = actual
        self.expected = expected

    @property
    def kind(self) -> str:
        """The name of its code, such as "TABLE_RANGE"."""
        return _KINDS.get(self.code, "")


FAULTS = {name.removeprefix("WM_FAULT_"): getattr(lib, name) for name in dir(lib) if name.startswith("WM_FAULT_")}
_KINDS = {code: name for name, code in FAULTS.items()}


def fault_of(fault: Any) -> Fault:
    """Return the fault in a wm_fault. Raises MemoryError if a scan ran out of memory."""
    if fault.code == lib.WM_FAULT_MEMORY:
        msg = f"no memory for a table of {fault.actual} bytes"
        raise MemoryError(msg)
    return Fault(fault.code, fault.row, fault.at, fault.actual, fault.expected)
