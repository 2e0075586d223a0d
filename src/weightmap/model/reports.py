"""What a handle tells about its file, as values."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TensorInfo", "VerifyReport"]


class TensorInfo(NamedTuple):
    """What a file says about one tensor.

    Attributes
    ----------
    name : str
    dtype : str
        Canonical name, such as "float32" or "bfloat16".
    shape : tuple of int
    offset : int
        Of the first byte, from the start of the file.
    nbytes : int
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class VerifyReport(NamedTuple):
    """What `TensorFile.verify` found. A file that fails raises instead.

    Attributes
    ----------
    path : str or None
    format, layout : str
    checks : tuple of str
        What was checked, in words.
    warnings : tuple of str
        What is odd but legal.
    nbytes : int
        Bytes read.
    structure_only : str or None
        Why changed tensor data could not be found, such as "safetensors has no checksums"; None where checksums cover
        all of it. Bytes without a checksum are read, and that is all that can be said of them.
    """

    path: str | None
    format: str
    layout: str
    checks: tuple[str, ...]
    warnings: tuple[str, ...]
    nbytes: int
    structure_only: str | None = None

    @property
    def scope(self) -> str:
        """What was checked, in a few words: "structure and checksums", or "structure only" and why."""
        return "structure and checksums" if self.structure_only is None else f"structure only: {self.structure_only}"
