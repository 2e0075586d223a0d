"""Input and output of bytes. Nothing else in the package knows descriptors or mappings."""

from typing import NamedTuple


class Range(NamedTuple):
    """Bytes from `begin` on, up to `end`, which is not among them."""

    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """How many bytes these are."""
        return self.end - self.begin
