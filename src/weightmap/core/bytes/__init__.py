"""Input and output of bytes. Nothing else in the package knows descriptors or mappings."""

from typing import NamedTuple


class Range(NamedTuple):
    """Bytes from `begin` up to `end`, exclusive."""

    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.end - self.begin
