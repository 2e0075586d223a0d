"""`DeltaReport`: what publishing, applying or pulling did."""

from __future__ import annotations

from typing import NamedTuple


class DeltaReport(NamedTuple):
    """The result of `publish`, `apply` and `pull`.

    Attributes
    ----------
    version, base_version : int
        The version that was published or is there now, and the one that it was built on or that was there before.
    tensors : int
        Number of tensors that changed.
    changed_nbytes : int
        Bytes of these tensors.
    stored_nbytes : int
        Bytes of the files of the deltas and full versions that were written or read.
    total_nbytes : int
        Bytes of all tensors of the model.
    seconds : float
        Time that it took.
    full : bool
        Whether `publish` wrote a full version.
    reason : str
        Why it did, where nobody asked for one: what a delta cannot express, with the name of a tensor.
    """

    version: int
    base_version: int
    tensors: int
    changed_nbytes: int
    stored_nbytes: int
    total_nbytes: int
    seconds: float
    full: bool = False
    reason: str = ""
