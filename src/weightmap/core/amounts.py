"""Counts of bytes for people."""

from __future__ import annotations

from weightmap.errors import counted

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def _scaled(nbytes: float) -> str:
    """Return a count in the largest unit of which it has one: ``"86.7 MiB"``; empty below a KiB."""
    amount, unit = float(nbytes), ""
    for larger in _UNITS:
        if amount < 1023.95:  # more would be written as 1,024.0
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.1f} {unit}" if unit else ""


def brief(nbytes: int) -> str:
    """Return a count in as few characters as people need: ``"512 B"``, ``"86.7 MiB"``."""
    return _scaled(nbytes) or f"{nbytes} B"


def size(nbytes: int) -> str:
    """Return a count in words: ``"512 bytes"``, ``"86.7 MiB"``."""
    return _scaled(nbytes) or counted(nbytes, "byte")


def sizes(nbytes: int) -> str:
    """Return a count in words, exact and short: ``"512 bytes"``, ``"90,868,376 bytes (86.7 MiB)"``."""
    short = _scaled(nbytes)
    return f"{nbytes:,} bytes ({short})" if short else counted(nbytes, "byte")
