"""Names, shapes and places of tensors. Every range that a file declares is validated here and nowhere else.

`Rules` holds a format's demands on every row; csrc/table.c checks them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap import native
from weightmap.dtypes import DECLARED, NUMPY_MAX_NDIM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from weightmap.dtypes import DType


INT64_MAX, U64_MAX = (1 << 63) - 1, (1 << 64) - 1
ANY_GAP = U64_MAX


class Rules:
    """The rules of a format for every row, the same for both kinds of table.

    A format subclasses it with the rules of all its files; the parameters come from one file.

    Parameters
    ----------
    base : int
        Position of the data in the file; offsets in rows count from there.
    file_size : int
    declared : int, optional
        Size of the data section, where the format declares one.
    lax : bool
        Whether order, overlap and holes go unchecked.

    Attributes
    ----------
    dtypes : tuple of DType or None
        By the format's code; None for an unused code. The tuple may end at the last used one.
    min_ndim, max_ndim : int
    alignment : int
        Every offset is a multiple of it: a power of two.
    max_gap : int
        Bytes of padding allowed before a tensor and after the last one; `ANY_GAP` if the format checks gaps itself.
    scattered : bool
        Whether tensors may lie anywhere in the data section, in any order, and share bytes.
    room : int
        Bytes of the file from `base` on. A row that ends past them is a `TruncatedError`, one that ends past `declared`
        a `LayoutError`.
    data_size : int
        Bytes that rows may lie in: the lesser of `room` and `declared`.
    fields : mapping of str to (str, int)
        For messages, by our names "data_offset", "data_size", "dtype", "name", "ndim", "shape": the format's own name
        of the field, and its byte within the entry of a row. A missing field keeps our name.
    unit : int
        Bytes that the format's own offsets and sizes count in; for messages.

    Notes
    -----
    `Table.check` checks everything. A single row is checked again at each use, but not for alignment, order, overlap
    and holes: none of them makes an array reach out of the file.
    """

    # Only the values of one file: setting a rule of the class on an instance raises instead of having no effect.
    __slots__ = ("base", "data_size", "declared", "lax", "room")
    dtypes: Sequence[DType | None] = ()
    bits: bytes = b""
    sized: Sequence[int] = ()  # codes of schemes: their rows declare their bytes
    min_ndim = 0
    max_ndim = NUMPY_MAX_NDIM
    ndims: frozenset[int] = frozenset(range(NUMPY_MAX_NDIM + 1))
    alignment = 1
    max_gap = 0
    fields: Mapping[str, tuple[str, int]] = MappingProxyType({})
    unit = 1
    scattered = False
    native: Any = None  # a wm_rules

    def __init_subclass__(cls) -> None:
        if "__slots__" not in cls.__dict__:
            msg = f"{cls.__name__} needs __slots__ = (): its rules are class attributes"
            raise TypeError(msg)
        cls.native = None

    @classmethod
    def _complete(cls) -> None:
        """Derive what the first file of a format needs; importing the package does so for none."""
        # One entry for each value of a byte, so that a look-up needs no length check.
        cls.dtypes = (*cls.dtypes, *(None,) * (256 - len(cls.dtypes)))
        cls.bits = bytes([0 if dtype is None else dtype.bits for dtype in cls.dtypes])
        cls.sized = [code for code, count in enumerate(cls.bits) if count == DECLARED]
        cls.ndims = frozenset(range(cls.min_ndim, cls.max_ndim + 1))  # faster than a range
        cls.native = native.row_rules(cls)

    def __init__(self, base: int, file_size: int, declared: int = U64_MAX, *, lax: bool = False) -> None:
        if self.native is None:
            self._complete()
        self.base: int = base
        room = file_size - base
        if room < 0:  # noqa: PLR1730 - half the time; the padding before the data is cut off
            room = 0
        self.room: int = room
        self.declared: int = declared
        self.data_size: int = declared if declared < room else room  # noqa: FURB136 - half the time
        self.lax: bool = lax

    @classmethod
    def varied(cls, **attributes: Any) -> type[Self]:
        """Return rules with other `attributes`, for a file that declares them itself, such as its alignment."""
        return type(cls.__name__, (cls,), {"__slots__": (), **attributes})
