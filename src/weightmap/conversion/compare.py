"""What differs between two model files, of whatever formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.dtypes import numpy_dtype
from weightmap.errors import UnsupportedError
from weightmap.model.file import TensorFile
from weightmap.model.opening import open_privately
from weightmap.model.reading import in_pieces

if TYPE_CHECKING:
    from weightmap.index.strings import Vocabulary
    from weightmap.index.table import Row
    from weightmap.model.reading import Located

__all__ = ["DiffReport", "TensorDiff", "diff"]

# Elements of quantised tensors that are decoded at once.
_PIECE = 1 << 18


class TensorDiff(NamedTuple):
    """A tensor that both files have and that is not the same in both.

    Attributes
    ----------
    name : str
    what : {"dtype", "shape", "values"}
    a, b : str
        Dtype and shape in each file.
    n_different : int or None
        Number of elements whose bytes differ.
    max_abs : float or None
        Largest absolute difference of two elements; NaN when one of them is not finite.
    """

    name: str
    what: str
    a: str
    b: str
    n_different: int | None
    max_abs: float | None


class DiffReport(NamedTuple):
    """What `diff` found.

    Attributes
    ----------
    a, b : str
        The files.
    only_in_a, only_in_b : tuple of str
        Names of tensors.
    changed : tuple of TensorDiff
    metadata : tuple of (key, value in a, value in b)
        None where a file does not have the key.
    vocab : str or None
        How the vocabularies differ; None when they do not.
    """

    a: str
    b: str
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    changed: tuple[TensorDiff, ...]
    metadata: tuple[tuple[str, Any, Any], ...]
    vocab: str | None

    @property
    def equal(self) -> bool:
        """Whether nothing differs: tensors, metadata, vocabulary. Order and format do not count."""
        return not (self.only_in_a or self.only_in_b or self.changed or self.metadata or self.vocab)


def diff(a: Any, b: Any) -> DiffReport:
    """Compare two model files tensor by tensor, bit by bit, with flat memory.

    Parameters
    ----------
    a, b : TensorFile or anything that `open` takes
        Bytes are content, never a path. Of a model directory, what its tensor files hold is compared, not the
        configuration and vocabulary beside them.

    Returns
    -------
    DiffReport

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.save("a.weights", {"w": np.zeros(3, np.float32)})
    >>> wm.save("b.safetensors", {"w": np.array([0, 0, 2], np.float32)})
    >>> wm.diff("a.weights", "b.safetensors").changed[0].max_abs
    2.0
    """
    if not isinstance(a, TensorFile):
        with open_privately(a) as file:
            return diff(file, b)
    if not isinstance(b, TensorFile):
        with open_privately(b) as file:
            return diff(a, file)
    for file in (a, b):
        file.check_unchanged()
        file.settle()
    names_b = set(b)
    only_in_a = tuple(name for name in a if name not in names_b)
    names_a = set(a)
    only_in_b = tuple(name for name in b if name not in names_a)
    changed = tuple(found for name in a if name in names_b if (found := _compare(name, a.locate(name), b.locate(name))))
    keys = {**a.metadata, **b.metadata}
    metadata = tuple(
        (key, a.metadata.get(key), b.metadata.get(key))
        for key in keys
        if not _alike(a.metadata.get(key), b.metadata.get(key))
    )
    return DiffReport(a.name, b.name, only_in_a, only_in_b, changed, metadata, _vocabularies(a.vocab, b.vocab))


def _alike(a: Any, b: Any) -> bool:
    """Say whether two values of metadata are equal. Some formats hold integers as decimal strings."""
    if isinstance(a, str) is isinstance(b, str) or isinstance(a, bool) or isinstance(b, bool):
        return bool(a == b)
    return isinstance(a, (int, str)) and isinstance(b, (int, str)) and str(a) == str(b)


def _compare(name: str, a: Located, b: Located) -> TensorDiff | None:
    (source_a, row_a, _), (source_b, row_b, _) = a, b
    text_a, text_b = (f"{row.dtype.name} {list(row.shape)}" for row in (row_a, row_b))
    if row_a.dtype is not row_b.dtype:
        return TensorDiff(name, "dtype", text_a, text_b, None, None)
    if row_a.shape != row_b.shape:
        return TensorDiff(name, "shape", text_a, text_b, None, None)
    if row_a.dtype.quantized:
        return _compare_decoded(name, a, b, (text_a, text_b))
    different, largest = 0, 0.0
    size = row_a.dtype.bits // 8
    pairs = zip(source_a.chunks(row_a.offset, row_a.nbytes), source_b.chunks(row_b.offset, row_b.nbytes), strict=True)
    for left, right in pairs:
        if left == right:
            continue
        raw = np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8)
        if not size:  # elements of less than a byte: count bytes
            different += int((raw[0] != raw[1]).sum())
            largest = float("nan")
            continue
        apart = (raw[0] != raw[1]).reshape(-1, size).any(1)
        different += int(apart.sum())
        largest = float(np.maximum(largest, _distance(raw, apart, row_a)))
    return TensorDiff(name, "values", text_a, text_b, different, largest) if different else None


def _compare_decoded(name: str, a: Located, b: Located, texts: tuple[str, str]) -> TensorDiff | None:
    """Compare two quantised tensors by what they decode to, to the bit; other codes for the same values are equal."""
    different, largest = 0, 0.0
    for left, right in zip(in_pieces(a), in_pieces(b), strict=False):
        if (left.block_size, left.scale_type) != (right.block_size, right.scale_type):
            one, other = (
                f"{texts[0]}, blocks of {part.block_size}, {part.scale_type} scales" for part in (left, right)
            )
            return TensorDiff(name, "dtype", one, other, None, None)
        if np.array_equal(left.payload, right.payload):
            continue
        for at in range(0, left.size, _PIECE):
            values = [part.flat(at, min(at + _PIECE, part.size)) for part in (left, right)]
            apart = values[0].view(np.uint32) != values[1].view(np.uint32)
            different += int(apart.sum())
            with np.errstate(invalid="ignore"):
                distance = np.abs(values[0].astype(np.float64) - values[1])
            largest = float(np.maximum(largest, distance[apart].max(initial=0)))
    return TensorDiff(name, "values", *texts, different, largest) if different else None


def _distance(raw: tuple[Any, Any], apart: Any, row: Row) -> float:
    try:
        dtype = numpy_dtype(row.dtype)
    except UnsupportedError:
        return float("nan")
    wide = np.complex128 if row.dtype.name == "complex64" else np.float64
    left, right = (part.view(dtype)[apart].astype(wide) for part in raw)
    with np.errstate(invalid="ignore"):
        return float(np.abs(left - right).max())


def _vocabularies(a: Vocabulary | None, b: Vocabulary | None) -> str | None:
    if a is None or b is None:
        return None if a is b else f"only {'B' if a is None else 'A'} has one"
    if len(a) != len(b):
        return f"{len(a)} tokens and {len(b)} tokens"
    for i, (left, right) in enumerate(zip(a, b, strict=True)):
        if left != right:
            return f"token {i} is {left!r} and {right!r}"
    if a.special_ids != b.special_ids:
        return f"special ids are {a.special_ids} and {b.special_ids}"
    return None
