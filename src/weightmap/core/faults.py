"""Faults that files of any format may have, each with one wording."""

from __future__ import annotations

from weightmap.errors import LayoutError, TruncatedError


def cut_off(
    what: str, at: int, needed: int | None = None, *, field: str | None = None, whole: str = "the file"
) -> TruncatedError:
    """Return the error for a `whole` that ends at byte `at` within `what`, which ends at byte `needed`.

    Examples
    --------
    >>> from weightmap.core.faults import cut_off
    >>> print(cut_off("the name of tensor 0", 60, 80))
    the file ends within the name of tensor 0 (was the download complete?), expected at least 80 bytes (at byte 60)
    """
    expected = None if needed is None else f"at least {needed} bytes"
    hint = " (was the download complete?)" if whole == "the file" else ""
    return TruncatedError(f"{whole} ends within {what}{hint}", field=field, offset=at, expected=expected)


def shrank(at: int, needed: int | None = None, *, during: str = "it") -> TruncatedError:
    """Return the error for a file that became shorter, so that it ends at byte `at`, while `during` was being read."""
    expected = None if needed is None else f"at least {needed} bytes"
    return TruncatedError(
        f"the file changed or became shorter while {during} was being read", offset=at, expected=expected
    )


def too_many(
    what: str, count: int, maximum: int, *, field: str | None, offset: int, limit: str = "the bytes that follow"
) -> TruncatedError:
    """Return the error for a declared number of things that exceeds `maximum`, the number that fits.

    Examples
    --------
    >>> from weightmap.core.faults import too_many
    >>> print(too_many("number of words", 5, 3, field="n", offset=8))
    number of words is 5, expected at most 3, given the bytes that follow (at byte 8)
    """
    return TruncatedError(what, field=field, offset=offset, actual=count, expected=f"at most {maximum}, given {limit}")


def trailing_bytes(
    size: int, end: int, *, field: str, offset: int | None = None, whole: str = "the file"
) -> LayoutError:
    """Return the error for a `whole` of `size` bytes whose content ends after `end` of them.

    Examples
    --------
    >>> from weightmap.core.faults import trailing_bytes
    >>> print(trailing_bytes(200, 176, field="size"))
    there are trailing bytes: the size of the file is 200, expected 176 (at byte 176)
    """
    at = end if offset is None else offset
    return LayoutError(
        f"there are trailing bytes: the size of {whole}", field=field, offset=at, actual=size, expected=end
    )


def nonzero_padding(where: str, offset: int) -> LayoutError:
    """Return the error for padding that should be zero.

    Examples
    --------
    >>> from weightmap.core.faults import nonzero_padding
    >>> print(nonzero_padding("between sections", 96))
    padding between sections is not zero (at byte 96)
    """
    return LayoutError(f"padding {where} is not zero", field="padding", offset=offset)
