"""`trust=`: the bytes that were meant, by a digest that was recorded elsewhere.

A digest is looked up by the name of a file relative to the model's folder: the directory that is opened, or the one of
the file. Everything that is opened has to be listed, and a list that names one file twice has to say the same twice.
Ours, for the specifications leave it open:

* Names are separated by ``/``. ``./`` in front counts for nothing; ``..``, absolute names and NUL are refused.
* A file of digests that is a Git LFS pointer, or holds a bare digest, is about the one file that is opened.
* "recorded" asks every place that it knows, and a file has to agree with all of them.
"""

from __future__ import annotations

__all__ = ["forget"]


def forget() -> int:
    """Empty the record of files that were hashed before, and return how many it had.

    The record lies in the user's cache directory, readable by the user alone. While a file has the same device, inode,
    size and times, it is mapped without being hashed again. The environment variable ``WEIGHTMAP_TRUST_RECORD=0`` turns
    the record off.

    Examples
    --------
    >>> import weightmap.trust
    >>> weightmap.trust.forget() >= 0
    True
    """
    from weightmap.trust.record import forget as forget_all  # noqa: PLC0415 - only this needs it

    return forget_all()
