"""Helpers for the tests of bounds: the error that opening a file raises, and the values next to a bound."""

from typing import Any

import weightmap as wm


def error_of(data: bytes, **options: Any) -> wm.TensorFileError | None:
    """The error that opening a file raises; None when it opens."""
    try:
        wm.open(memoryview(data), **options).close()
    except wm.TensorFileError as error:
        return error
    return None


def refused(data: bytes, **options: Any) -> wm.TensorFileError:
    """The error that opening a file raises."""
    error = error_of(data, **options)
    assert error is not None
    return error
