"""Recognises word embeddings of other programs by their beginning."""

from __future__ import annotations

from weightmap.formats._base import HEAD

ADVICE = "convert it to finalfusion first (weightmap convert FILE words.fifu)"
_PRINTABLE = bytes([9, 10, 13, *range(0x20, 0x7F)])
_DIGITS = 18


def declared(head: bytes) -> tuple[int, int, int] | None:
    """Return the rows and dims declared by a first line of two numbers, and its end; None for another line."""
    line, end, _ = head[:HEAD].partition(b"\n")
    fields = line.split()
    if not end or len(fields) != 2 or not all(field.isdigit() and len(field) <= _DIGITS for field in fields):
        return None
    return int(fields[0]), int(fields[1]), len(line) + 1


def whole_fields(head: bytes, size: int) -> bytes:
    """Return the beginning of a file of `size` bytes without the field cut off by the end of `head`."""
    return head if size == len(head) else head.rsplit(None, 1)[0]


def is_row(line: bytes, most_wrong: float) -> bool:
    """Whether numbers follow the first word of a line, with at most the share `most_wrong` of other fields."""
    fields = line.split()[1:]
    return bool(fields) and sum(not _is_number(field) for field in fields) <= most_wrong * len(fields)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def in_text(head: bytes, size: int, dims: int, start: int) -> bool:
    """Whether the first vector, behind a line that ends at `start`, is text and not binary.

    It is text if numbers follow the word. It is faulty text if all bytes of a binary vector's size, up to 256, are
    printable; with fewer than four numbers, bytes are printable too often to tell.
    """
    if is_row(whole_fields(head, size)[start:].partition(b"\n")[0], 0):
        return True
    vector = head[start:].lstrip(b"\r\n").partition(b" ")[2][: min(4 * dims, 256)]
    return dims >= 4 and not vector.translate(None, _PRINTABLE)
