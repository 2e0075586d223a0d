"""`TensorInfo` and `VerifyReport`: facts about a tensor, and the result of `TensorFile.verify`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TensorInfo", "VerifyReport"]


class TensorInfo(NamedTuple):
    """A tensor's entry in the index of its file.

    Attributes
    ----------
    name : str
    dtype : str
        Canonical name, such as "float32" or "bfloat16".
    shape : tuple of int
    offset : int
        Position of the first byte in the file.
    nbytes : int
        Size of the data, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class VerifyReport(NamedTuple):
    """The result of `TensorFile.verify` for a sound file; a damaged one raises an error instead.

    Attributes
    ----------
    path : str or None
    format, layout : str
    checks : tuple of str
        Descriptions of the checks.
    warnings : tuple of str
        Legal oddities, and deviations tolerated by ``strict=False``.
    nbytes : int
        Bytes read.
    structure_only : str or None
        Why changes of tensor data would go unnoticed, such as "safetensors has no checksums"; None if checksums cover
        all data. Bytes without a checksum are only shown to be readable.
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
        """A summary of the checks: "structure and checksums", or "structure only" and why."""
        return "structure and checksums" if self.structure_only is None else f"structure only: {self.structure_only}"
