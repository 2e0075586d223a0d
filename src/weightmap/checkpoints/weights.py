"""The parameters of a quantised checkpoint, which stores each parameter as several tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weightmap._messages import quoted
from weightmap.checkpoints.methods import FLOATS, HALVES, Group, Method, Settings, method_of
from weightmap.checkpoints.pieced import Coding, CompositeTensor, Layout, TargetTypes, head
from weightmap.checkpoints.views import ViewTable
from weightmap.core.bytes import Range
from weightmap.core.bytes.derived import Derived, Fetched
from weightmap.core.bytes.geometry import Geometry, ascending
from weightmap.core.bytes.source import Source
from weightmap.core.dtypes import DTYPES, SCHEMES, DType, numpy_dtype
from weightmap.core.model.codes import refuse_codes
from weightmap.core.model.internals import requested, rows_of
from weightmap.core.native.quantised import GGML_TYPES, blocks_size, ggml_size
from weightmap.core.quant import PIECE
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.ggml import GgmlTensor
from weightmap.core.quant.schemes import BITS
from weightmap.core.table import StringTable
from weightmap.core.table.table import Row, Table, TensorInfo
from weightmap.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_NOTHING = TargetTypes()
# Parameters whose scales and other pieces are requested together, and the approximate bytes of these pieces at a time.
_TOGETHER, _MAX_BATCH_NBYTES = 64, 64 << 20
# Bytes read at once, from a local file, of a piece whose columns are decoded together.
_MAX_COLUMNS_NBYTES = 64 << 20
# Elements decoded at once without an array of single ones; transposed codes are slow with fewer columns.
_DIRECT_PIECE = 8 * PIECE
_T = TypeVar("_T")
# The suffix of a whole tensor's scale, as in llama.cpp.
_WHOLE = ".scale"


def parameters_of(
    stored: Table, settings: Settings, config: Mapping[str, Any], dtype: str | None, target_types: TargetTypes | None
) -> ViewTable:
    """Return the table of the parameters of a quantised checkpoint: see `as_parameters`."""
    return _Parameters(stored, method_of(settings), _type_of(config), dtype, target_types or _NOTHING)


def _type_of(config: Mapping[str, Any]) -> str | None:
    """Return the type of the model's parameters, if the configuration states it."""
    sections = [values for values in (config, config.get("text_config")) if isinstance(values, Mapping)]
    names = (f"{values.get(key)}".removeprefix("torch.") for values in sections for key in ("dtype", "torch_dtype"))
    return next((name for name in names if name in FLOATS), None)


def storage_of(row: Row) -> tuple[str, int, str, int] | None:
    """Return scheme, block size, type of scales and bytes of a parameter's pieces; None if it is a plain tensor.

    Of decoded parameters that were permuted, cast or stacked, these describe the first one.
    """
    pieces, source = row.geometry, row.source
    while pieces is None and isinstance(source, Derived):
        if isinstance(source, _Decoded) and source.layout is None:
            pieces = source.components
        source = source.parent
    if not isinstance(pieces, Components):
        return None
    coding, rows = pieces.coding, [piece for _, piece in pieces.rows.values()]
    scale_type = coding.scale_type or pieces.rows[coding.scales][1].dtype.name
    return coding.scheme, coding.block_size, scale_type, sum(piece.nbytes for piece in rows)


def decoded_to(row: Row, dtype: DType) -> Row:
    """Return the row of a parameter, decoded directly to another type; other rows stay as they are."""
    if not isinstance(row.source, _Decoded) or row.source.layout is not None:
        return row
    nbytes = math.prod(row.shape) * dtype.bits // 8
    return row._replace(dtype=dtype, nbytes=nbytes, geometry=row.source.components).dense


def stored_rows(file: Any) -> Iterator[tuple[TensorInfo, Row]]:
    """Yield the entry of every parameter, with its stored scheme and bytes, and its row."""
    for name, row in zip(file, rows_of(file), strict=True):
        yield stored_info(name, row), row


def stored_info(name: str, row: Row) -> TensorInfo:
    """Return the entry of a parameter, with its stored scheme and bytes."""
    info, how = row.info(name), storage_of(row)
    return info if how is None else info._replace(dtype=how[0], nbytes=how[3])


# -------------------------------------------------------------------------------------------------------- the table
class _Parameters(ViewTable):
    """The parameters of a model over the table of its stored tensors.

    Parameters
    ----------
    stored : Table
    method : Method
    model_dtype : str or None
        The type of the model's parameters, if known.
    dtype : str or None
        The type to decode to, if not the model's.
    target_types : TargetTypes
        The schemes to repack parameters to.
    """

    def __init__(
        self, stored: Table, method: Method, model_dtype: str | None, dtype: str | None, target_types: TargetTypes
    ) -> None:
        super().__init__(stored)
        self._method, self._model_dtype, self._dtype, self._target_types = method, model_dtype, dtype, target_types
        names, self._entries = _grouped(stored, method)
        plain = (number for number in map(_lone, self._entries) if number is not None)
        refuse_codes(stored, plain, f"quant_method {quoted(method.settings.values['quant_method'])}")
        self._quantized_rows: dict[int, Row] = {}
        if "nvfp4" in target_types.schemes:
            names, self._entries = self._with_wholes(names)
        self._names = StringTable.of(names, "tensor name")
        self.count = len(names)

    def _with_wholes(self, names: list[str]) -> tuple[list[str], list[Any]]:
        """Return names and entries, and the scales of whole tensors beside parameters repacked to nvfp4.

        If the scale's name is taken, or the conversion leaves the scale out, the parameter is decoded instead.
        """
        used = set(names)

        def parameter_or_row(number: int, small: _Small | None) -> Any:
            name, entry = names[number], self._entries[number]
            if type(entry) is int or not {"weight_scale_2", "weight_global_scale", "scale"} & entry.keys():
                return entry
            scale_name = self._whole_of(name)
            fits = scale_name not in used and self._target_types.takes(name) and self._target_types.takes(scale_name)
            return self._parameter(entry, self._target_types if fits else _NOTHING, small)

        texts, entries = list[str](), list[Any]()
        for name, row in zip(names, self._together(parameter_or_row, len(names)), strict=True):
            texts.append(name)
            entries.append(row)
            layout = row.source.layout if isinstance(row, Row) and isinstance(row.source, _Decoded) else None
            if layout is not None and layout.whole is not None:
                texts.append(self._whole_of(name))
                source = Fetched(row.source, row.offset, layout.whole.view(np.uint8))
                entries.append(Row(DTYPES["float32"], layout.whole.shape, source, row.offset, layout.whole.nbytes))
        return texts, entries

    def _whole_of(self, name: str) -> str:
        """Return the name of the scale of a whole tensor, given the parameter's."""
        return name.removesuffix(self._method.parameter) + _WHOLE

    def _together(self, make: Callable[[int, _Small | None], _T], count: int) -> Iterator[_T]:
        """Yield the result of `make` for each number.

        For a model in a store, pieces that several calls have to read are requested together.
        """
        if not count or self._stored.row(0).source.store is None:
            yield from (make(number, None) for number in range(count))
            return
        for first in range(0, count, _TOGETHER):
            small, results = _Small(), dict[int, _T]()
            pending = list(range(first, min(first + _TOGETHER, count)))
            while pending:
                again = list[int]()
                for at, number in enumerate(pending):
                    try:
                        results[number] = make(number, small)
                    except _UnreadError as error:
                        again.append(number)
                        if small.ask(number, error):
                            again += pending[at + 1 :]
                            break
                    else:
                        small.forget(number)
                small.read()
                pending = again
            yield from (results[number] for number in sorted(results))

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in order."""
        return self._together(self._row_of, self.count)

    def row(self, i: int) -> Row:
        """Return row i, checked; a quantised parameter's row has `Components` as its geometry."""
        return self._row_of(i, None)

    def _row_of(self, i: int, small: _Small | None) -> Row:
        entry = self._entries[i]
        if type(entry) is int:
            row = self._stored.row(entry)
            self._method.check_lone(self._stored.names[entry], row)
            return row
        if isinstance(entry, Row):
            return entry
        if i not in self._quantized_rows:
            self._quantized_rows[i] = self._parameter(entry, self._target_types, small)
        return self._quantized_rows[i]

    def _parameter(self, numbers: dict[str, int], target_types: TargetTypes, small: _Small | None) -> Row:
        """Return the row of a parameter. Raises `_UnreadError` for a piece that must be read and is not in `small`."""
        stored = {role: (self._stored.names[number], self._stored.row(number)) for role, number in numbers.items()}
        named = self._method.of_one(stored)
        rows = {role: row for role, (_, row) in named.items()}
        role, (name, first) = next(iter(named.items()))
        endings = (*self._method.endings, *self._method.fused)
        module = next((name.removesuffix(end) for end in endings if end[1:] == role and name.endswith(end)), name)
        if small is not None:
            rows = {role: small.of(row) for role, row in rows.items()}
        group = Group(module, {role: (name, rows[role]) for role, (name, _) in named.items()})
        coding = self._method.coding_or_none(group)
        if coding is None:
            return first
        scales = rows[coding.scales].dtype.name
        model_dtype = self._model_dtype or coding.stated or (scales if scales in HALVES else "bfloat16")
        dtype = DTYPES[self._dtype or model_dtype]
        nbytes = math.prod(coding.shape) * dtype.bits // 8
        starts = {
            role: row.offset - stored[role][1].offset for role, (_, row) in named.items() if row is not stored[role][1]
        }
        pieces = Components(coding, DTYPES[model_dtype], named, starts)
        layout = coding.counterpart(lambda role: _read(rows[role]), target_types) if target_types.schemes else None
        if layout is not None:
            return _repacked(first, pieces, layout, head(layout, _read(rows[coding.scales])))
        return first._replace(dtype=dtype, shape=coding.shape, nbytes=nbytes, geometry=pieces, quantized=None)


def _lone(entry: int | dict[str, int]) -> int | None:
    """Return the number of a tensor that is a parameter by itself; None for a group."""
    if isinstance(entry, dict):
        return entry["weight"] if entry.keys() == {"weight"} else None
    return entry


def _grouped(stored: Table, method: Method) -> tuple[list[str], list[Any]]:
    """Return the names of all parameters, and for each the number of its tensor, or numbers by role.

    A parameter takes the place of its first piece. Raises `FormatError` for a parameter that is stored twice.
    """
    names = list(stored.names)
    longest = re.compile(rf"(?:{'|'.join(map(re.escape, (*method.endings, *method.fused)))})\Z")
    matches = [longest.search(name, 1) for name in names]
    fused = {match.string[: match.start()] for match in matches if match is not None and match[0] in method.fused}
    role_of: list[tuple[str, str] | None] = []  # for each tensor, its parameter and its role there
    groups: dict[str, dict[str, int]] = {}
    for number, (name, match) in enumerate(zip(names, matches, strict=True)):
        piece = (name, "weight") if name in fused else None
        if match is not None:
            piece = name[: match.start()] + ("" if match[0] in method.fused else method.parameter), match[0][1:]
        if piece is not None:
            groups.setdefault(piece[0], {})[piece[1]] = number
        role_of.append(piece)
    for parameter, roles in list(groups.items()):
        if not method.belongs(roles, lambda role: stored.row(roles[role])):  # noqa: B023 - called at once
            del groups[parameter]
    shared = {parameter: layer for parameter in groups if (layer := _layer_of(parameter, groups, method)) is not None}
    layers = set(shared.values())
    grouped = dict[str, int | dict[str, int]]()
    for number, (name, piece) in enumerate(zip(names, role_of, strict=True)):
        if name.rpartition(".")[2] in method.markers or (piece is not None and piece[0] in layers):
            continue
        group = groups.get(piece[0]) if piece is not None else None
        if group is None or piece is None:
            entry: int | dict[str, int] = number
        elif number != min(group.values()):
            continue
        else:
            name = piece[0]  # noqa: PLW2901 - the name of the parameter
            entry = group | groups[shared[name]] if name in shared else group
        if name in grouped:
            numbers = [n for one in (entry, grouped[name]) for n in ([one] if type(one) is int else one.values())]  # type: ignore[union-attr]
            stored_as = ", ".join(quoted(names[n]) for n in numbers)
            raise FormatError(f"parameter {quoted(name)} is stored twice: {stored_as}", field="quantization_config")
        grouped[name] = entry
    return list(grouped), list(grouped.values())


def _layer_of(parameter: str, groups: Mapping[str, Any], method: Method) -> str | None:
    """Return the name under which one tensor holds the scales of all experts, from the matrix of one expert."""
    names = method.layers_of(parameter)
    return next((name for name in names if name in groups and "weight" not in groups[name]), None)


# -------------------------------------------------------------------------------------------------------- the pieces
class Components(Geometry):
    """The geometry of a parameter made of several tensors.

    Parameters
    ----------
    coding : Coding
    model_dtype : DType
        The type of the model's parameters.
    rows : mapping of str to (str, Row)
        Name and row of each piece by its role.
    starts : mapping of str to int
        By role, the bytes before a piece in a tensor that holds pieces of several parameters.
    """

    __slots__ = ("coding", "model_dtype", "rows", "starts")

    coding: Coding
    model_dtype: DType
    rows: Mapping[str, tuple[str, Row]]
    starts: Mapping[str, int]

    def __init__(
        self, coding: Coding, model_dtype: DType, rows: Mapping[str, tuple[str, Row]], starts: Mapping[str, int]
    ) -> None:
        self.coding, self.model_dtype, self.rows, self.starts = coding, model_dtype, rows, starts

    def array(self, row: Any) -> Any:  # noqa: ARG002 - the pieces know where they lie
        """Return the parameter over views of its pieces."""
        arrays = {}
        for role, (name, piece) in self.rows.items():
            piece.source.check_unchanged()
            arrays[role] = name, piece.array()
        return self.over(arrays)

    def reads(self, row: Any) -> Iterator[tuple[Source, int, int]]:  # noqa: ARG002 - the pieces know where they lie
        """Yield the ranges of the pieces."""
        for _, piece in self.rows.values():
            yield from piece.reads()

    def reading(self, row: Any, ahead: Mapping[Source, Source]) -> Row:
        """Return the row over other sources of the pieces."""
        return row._replace(geometry=self.over_sources(ahead))  # type: ignore[no-any-return]

    def over_sources(self, ahead: Mapping[Source, Source]) -> Components:
        """Return the same geometry over other sources."""
        rows = {role: (name, piece.reading(ahead)) for role, (name, piece) in self.rows.items()}
        return Components(self.coding, self.model_dtype, rows, self.starts)

    def piece_of(self, role: str, whole: NDArray[Any]) -> NDArray[Any]:
        """Return a piece, from a tensor that holds pieces of several parameters."""
        start, (_, row) = self.starts[role], self.rows[role]
        octets = whole.payload if isinstance(whole, QuantizedTensor) else whole.reshape(-1).view(np.uint8)
        array: NDArray[Any] = row.over(octets[start : start + row.nbytes])
        return array

    def over(self, pieces: Mapping[str, tuple[str, NDArray[Any]]]) -> CompositeTensor:
        """Return the parameter over arrays of its pieces."""
        return CompositeTensor(self.coding, numpy_dtype(self.model_dtype), pieces)

    def dense(self, row: Any) -> Source:
        """Return a source of the decoded values in row-major order, in the row's type."""
        return _Decoded(row, self)

    def extent(self, row: Any, axes: Any) -> Range:  # noqa: ARG002 - of the first piece
        """Return the range of the first piece."""
        first = next(iter(self.rows.values()))[1]
        return Range(first.offset, first.offset + first.nbytes)

    def part(self, row: Any, axes: Any, octets: NDArray[np.uint8]) -> NDArray[Any]:  # noqa: ARG002 - see `extent`
        """Decode the elements that an index selects."""
        return self.array(row)[ascending(axes)]  # type: ignore[no-any-return]


class _Blocks:
    """Repacked tensors, for `Table.quantized`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        scheme, size, scale_type, _ = self._layout
        if scheme in GGML_TYPES:
            return GgmlTensor(scheme, row.shape, octets)
        return QuantizedTensor(scheme, row.shape, octets, block_size=size, scale_type=scale_type)

    def layout(self, row: Row, head: bytes) -> tuple[int, int, str]:
        """Return offset of the payload, elements of a block, and type of scales."""
        del row, head
        return 0, self._layout.block_size, self._layout.scale_type


def _repacked(first: Row, pieces: Components, layout: Layout, head: bytes) -> Row:
    """Return the row of a parameter as blocks; experts then stay the stored matrices, without a transpose."""
    shape, scheme = pieces.coding.stored_shape, layout.scheme
    if scheme in GGML_TYPES:
        nbytes = ggml_size(math.prod(shape), scheme)
    else:
        size, scale_type = layout.block_size, layout.scale_type
        nbytes = blocks_size(math.prod(shape), bits=BITS[scheme], block_size=size, scale_type=scale_type)
    row = first._replace(dtype=SCHEMES[scheme], shape=shape, nbytes=nbytes, geometry=None, quantized=_Blocks(layout))
    return row._replace(source=_Decoded(row, pieces, layout, head))


def _read(row: Row) -> NDArray[Any]:
    """Read a piece into private memory."""
    dense = row.dense
    dtype, shape = dense.viewed
    return np.frombuffer(dense.source.pread(dense.offset, dense.nbytes), dtype).reshape(shape)


def _columns(row: Row, key: Any) -> tuple[int, NDArray[Any]]:
    """Read the columns of a piece that an index selects, and some more; return the first number, and all of them."""
    dtype, shape = row.viewed
    if key is None or row.nbytes <= _MAX_COLUMNS_NBYTES or type(row.source) is not Source:
        return 0, _read(row)
    each, begin = dtype.itemsize, key[1].start
    count = min(max(_MAX_COLUMNS_NBYTES // (each * shape[0]), key[1].stop - begin), shape[1] - begin)
    columns = np.empty((shape[0], count), dtype)
    starts = row.offset + each * (np.arange(shape[0]) * shape[1] + begin)
    # The gap makes the whole piece come from the disk at once, for the next columns.
    row.source.read_runs(starts, each * count, columns.reshape(-1).view(np.uint8), gap=each * shape[1])
    return begin, columns


def _rows(row: Row, key: slice) -> tuple[int, int, int]:
    """Return begin and end of some rows of a piece in its source, and their number."""
    count = row.viewed[1][0]
    first, last, _ = key.indices(count)
    each = row.nbytes // max(count, 1)
    return row.offset + first * each, row.offset + last * each, last - first


class _UnreadError(Exception):
    """A piece has to be read first: `_Parameters` reads it, and tries again."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row


class _Small:
    """Small pieces of parameters in a store, such as scales: pieces read, and pieces to read next."""

    def __init__(self) -> None:
        self._there: dict[tuple[Source, int], NDArray[np.uint8]] = {}
        self._requests: dict[int, list[Row]] = {}
        self._next: list[Row] = []

    def of(self, row: Row) -> Row:
        """Return a row over the bytes held here."""
        return row if row.geometry is not None else row._replace(source=_Piece(row, self._there))

    def ask(self, number: int, error: _UnreadError) -> bool:
        """Note a piece that parameter `number` needs; return whether enough pieces are noted to read them."""
        self._requests.setdefault(number, []).append(error.row)
        self._next.append(error.row)
        return sum(row.nbytes for row in self._next) > _MAX_BATCH_NBYTES

    def read(self) -> None:
        """Read the noted pieces."""
        self._next.sort(key=lambda row: row.offset)
        for row, ahead in zip(self._next, requested(self._next), strict=True):
            octets = ahead.source.pread(row.offset, row.nbytes)
            self._there[row.source, row.offset] = np.frombuffer(octets, np.uint8)
        self._next.clear()

    def forget(self, number: int) -> None:
        """Drop the pieces of a parameter."""
        for row in self._requests.pop(number, ()):
            self._there.pop((row.source, row.offset), None)


class _Piece(Derived):
    """The bytes of a piece; raises `_UnreadError` if they have not been read."""

    def __init__(self, row: Row, there: Mapping[tuple[Source, int], NDArray[np.uint8]]) -> None:
        super().__init__(row.source, row.offset, row.nbytes)
        self._row, self._there = row, there

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        octets = self._there.get((self._row.source, self._row.offset))
        if octets is None:
            raise _UnreadError(self._row)
        yield octets[start:stop]


class _Decoded(Derived):
    """The values of a quantised parameter, or its blocks, made from pieces that are read in parts; `row` is its row.

    Blocks have the given `layout`, and follow the bytes of `head`.
    """

    def __init__(self, row: Any, pieces: Components, layout: Layout | None = None, head: bytes = b"") -> None:
        super().__init__(row.source, row.offset, row.nbytes)
        self._row, self.components, self.layout, self._head = row, pieces, layout, head
        self._width = (row.nbytes - len(head)) // max(row.shape[0], 1)

    def check_size(self, what: str, nbytes: int) -> None:
        """Implement `Source.check_size`: each element has a stored code of at least a bit."""

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:
        """Implement `Source.reads`: rows of each piece, or the whole piece once."""
        sources = set()
        for _, _, cut in self._groups(*self._behind_head(begin - self._base, end - self._base)):
            for role, key in cut.items():
                row = self.components.rows[role][1].dense
                if type(key) is slice:
                    begin, end, _ = _rows(row, key)
                    yield from row.source.reads(begin, end)
                elif role not in sources:
                    sources.add(role)
                    yield from row.reads()

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        return _Decoded(self._row, self.components.over_sources(ahead), self.layout, self._head)

    def _behind_head(self, start: int, stop: int) -> tuple[int, int]:
        return max(start - len(self._head), 0), max(stop - len(self._head), 0)

    def _groups(self, start: int, stop: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield first and last row of each group to decode at once, and the parts of the pieces for it."""
        coding, width = self.components.coding, self._width
        if start == stop:
            return
        many = _DIRECT_PIECE if coding.direct else PIECE
        max_rows = max(many // math.prod(coding.shape[1:]) // coding.step, 1) * coding.step
        first, end = start // width // coding.step * coding.step, -(-stop // width)
        for begin in range(first, end, max_rows):
            _, last = coding.around(begin, min(begin + max_rows, end))
            yield begin, last, coding.cut(begin, last)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        row, coding, width = self._row, self.components.coding, self._width
        if start < len(self._head):
            yield np.frombuffer(self._head[start:stop], np.uint8)
        start, stop = self._behind_head(start, stop)
        shared: dict[str, tuple[int, NDArray[Any]]] = {}  # columns of pieces, and the number of the first one
        for begin, last, cut in self._groups(start, stop):
            parts = {role: self._part(role, key, shared) for role, key in cut.items()}
            if self.layout is not None:
                decoded = coding.blocks(parts, begin, last, self.layout)
            else:
                decoded = coding.rows(parts, begin, last, numpy_dtype(row.dtype))
            octets = np.ascontiguousarray(decoded).reshape(-1).view(np.uint8)
            yield octets[max(start - begin * width, 0) : stop - begin * width]

    def _part(self, role: str, key: Any, shared: dict[str, tuple[int, NDArray[Any]]]) -> NDArray[Any]:
        """Read the part of a piece that an index selects: just its rows, or else its columns and some after them."""
        row = self.components.rows[role][1].dense
        dtype, shape = row.viewed
        if type(key) is slice:
            begin, end, count = _rows(row, key)
            return np.frombuffer(row.source.pread(begin, end - begin), dtype).reshape(count, *shape[1:])
        begin, columns = shared.get(role, (0, None))
        if columns is None or (
            key is not None and not begin <= key[1].start <= key[1].stop <= begin + columns.shape[1]
        ):
            begin, columns = shared[role] = _columns(row, key)
        return columns if key is None else columns[:, key[1].start - begin : key[1].stop - begin]
