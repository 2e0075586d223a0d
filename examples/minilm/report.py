"""The output of the demo: sentences with their similarities, and a table of two measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minilm.measure import OPENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from minilm.measure import Measurement

_UNKNOWN = "not available"
_LABEL, _COLUMN = 33, 15


def similarity_lines(sentences: Sequence[str], embeddings: NDArray[np.float32]) -> Iterator[str]:
    """Yield lines with the numbered sentences, their cosine similarities, and for each the most similar other one.

    `embeddings` are the rows of the n sentences, of length 1, shape (n, d).
    """
    similarity = embeddings @ embeddings.T
    n = len(sentences)
    yield from (f"{number:3}  {sentence}" for number, sentence in enumerate(sentences, start=1))
    yield ""
    yield "     " + "".join(f"{number:7}" for number in range(1, n + 1)) + ("   closest" if n > 1 else "")
    for row in range(n):
        line = f"{row + 1:5}" + "".join(f"{value:7.3f}" for value in similarity[row])
        if n > 1:
            closest = max((other for other in range(n) if other != row), key=similarity[row].__getitem__)
            line += f"{closest + 1:10}"
        yield line


def measurement_lines(
    ours: Measurement, theirs: Measurement | None, why_not: str, *, exact: bool = True
) -> Iterator[str]:
    """Yield the lines of the table that compares weightmap with safetensors, and the meaning of each number.

    Parameters
    ----------
    ours, theirs : Measurement
        Results of weightmap and of safetensors; `theirs` is None if it could not be measured.
    why_not : str
        The reason for that, printed instead of the second column.
    exact : bool
        Whether both files hold the same weights, so that their embeddings must be equal. Otherwise (with rounded
        weights) their cosine similarity is printed.
    """
    columns = [ours] if theirs is None else [ours, theirs]

    def row(label: str, *cells: str) -> str:
        return label.ljust(_LABEL) + "".join(cell.rjust(_COLUMN) for cell in cells)

    yield row("", *("weightmap", "safetensors")[: len(columns)])
    yield row("open, first time", *(_time(one.open_first) for one in columns))
    yield row(f"open, median of {OPENS} more", *(_time(one.open_median) for one in columns))
    yield row("every tensor in hand", *(_time(one.tensors) for one in columns))
    yield row("first embedding", *(_time(one.embedding) for one in columns))
    yield row("anonymous memory before opening", *(_memory(one.memory_before) for one in columns))
    yield row("  added by every tensor", *(_memory(one.memory_tensors, one.memory_before) for one in columns))
    yield row("  added by the first embedding", *(_memory(one.memory_embedding, one.memory_tensors) for one in columns))
    yield ""
    if theirs is None:
        yield f"safetensors was not measured: {why_not}."
    else:
        processes = "Each column comes from a process of its own; both files were in the page cache."
        if ours.vector == theirs.vector:
            yield f"Both gave the same embedding, bit for bit. {processes}"
        elif exact:
            yield f"Both gave DIFFERENT embeddings. {processes}"
        else:
            cosine = math.fsum(a * b for a, b in zip(ours.vector, theirs.vector, strict=True))
            yield f"Cosine similarity of the two embeddings: {cosine:.5f}. {processes}"
    yield "open                  from the path to a handle, header and index checked (safetensors: safe_open)"
    yield "open, first time      also imports the format, once in a process: weightmap imports one at its first file"
    yield "every tensor in hand  from the first opening until each tensor is a numpy array"
    yield "first embedding       from the first opening through tokeniser and layers to the first sentence's vector"
    yield "anonymous memory      memory that no file backs: copies of tensors count, pages of a mapped file do not"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def _memory(value: int | None, base: int | None = 0) -> str:
    if value is None or base is None:
        return _UNKNOWN
    return f"{(value - base) / 2**20:.1f} MiB"
