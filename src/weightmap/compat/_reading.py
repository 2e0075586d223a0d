"""Reads tensors of an open file, and parts of them, for one framework: for `safe_open`, its slices and loaders."""

from __future__ import annotations

import copy
import math
import mmap
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import weightmap as wm
from weightmap._messages import quoted
from weightmap.compat._frameworks import Framework, imported
from weightmap.core.bytes import Range
from weightmap.core.dtypes import DTYPES, DType, numpy_dtype
from weightmap.core.formats.safetensors import DTYPE_NAMES
from weightmap.core.hooks import later
from weightmap.core.model.internals import check_copied, dense_row, is_remote, parts_of, row_of, suggestion
from weightmap.core.model.opening import open_stored
from weightmap.core.native import access
from weightmap.core.native.files import drop_pages
from weightmap.errors import PlanError, TensorFileError, TensorNotFoundError, UnsupportedError
from weightmap.plans.delivery import PartReader, Runs
from weightmap.plans.pages import is_cached
from weightmap.plans.places import Heads
from weightmap.plans.residency import spans_of
from weightmap.plans.wants import Axis, axes_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row, TensorInfo

# Reading a tensor, or part of one, without mapping the file, for ``backend="pread"``.

# Most bytes between two runs to read along: a separate read would take as long.
_GAP = 64 << 10
# Parts of at least this many bytes are read ahead, as the ranks of a group take them, and so are smaller whole tensors
# between them. Larger whole tensors follow each other, so that the system itself reads them ahead.
_AHEAD = 256 << 10
_SMALL = 1 << 20
# Bytes read at once.
_CHUNK = 16 << 20


# These import torch.
_read_tensor: Callable[..., Any] = later("weightmap.torch._tensors", "read_tensor")
_load_tensors: Callable[..., Any] = later("weightmap.torch._files", "load_tensors")


def read_whole(file: TensorFile, name: str) -> NDArray[Any]:
    """Return a tensor in private memory: a quantised one as float32, one packed below the byte as bytes."""
    row = dense_row(file, name)
    if not row.dtype.packed:
        return file.read(name, np.float32 if row.dtype.quantized else numpy_dtype(row.dtype))
    octets = access.empty(row.nbytes, np.uint8)
    row.source.read_into(row.offset, octets)
    return octets


def read_part(file: TensorFile, name: str, index: tuple[Any, ...]) -> NDArray[Any]:
    """Return ``array[index]`` of a tensor; `index` has an ellipsis.

    An index of integers and slices reads only its elements, and small gaps between them; for a few rows of a quantised
    tensor, it reads their blocks. Any other index reads the whole tensor. Raises IndexError as numpy does.
    """
    row = dense_row(file, name)
    key = tuple(part for part in index if part is not None)
    if not is_plain(key):
        return np.asarray((row.decoder() if row.dtype.quantized else read_whole(file, name))[index])
    what = f"tensor {quoted(name)}"
    try:
        axes = axes_of(key, row.shape, name)
    except PlanError:
        np.broadcast_to(np.uint8(0), row.shape)[index]  # for numpy's errors
        raise
    row.source.check_unchanged()
    if row.dtype.quantized:
        partial = row.shape and 2 * axes[0].size <= row.shape[0]  # a decoder can only leave out rows
        reader = PartReader(row.source, chunk=_CHUNK, gap=_GAP, max_over_read=math.inf)
        return np.asarray((reader.quantized(row, key, name, Heads(), 0) if partial else row.decoder())[index])
    stored = numpy_dtype(row.dtype)
    box = _box(axes, row.shape, stored.itemsize)
    runs = Runs(row, box, name)
    parts_of(file)[2].limits.check("max_copy_bytes", runs.nbytes, f"size of a part of {what}")
    row.source.check_size(f"a part of {what}", runs.nbytes)
    read = access.empty(tuple([axis.size for axis in box]), stored)
    source = row.source.ahead(Range(start, start + runs.length) for start in runs.starts.tolist())
    # Neighbours were joined in the box.
    PartReader(source, chunk=_CHUNK, gap=0, max_over_read=1).gather(runs, read.reshape(-1).view(np.uint8))
    part: NDArray[Any] = read[(*map(_within, axes, box), ...)]
    return part if len(key) == len(index) else part[_axes_added(index)]


def _with_ellipsis(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index that keeps a single element an array, a view, instead of a scalar."""
    return index if any(part is Ellipsis for part in index) else (*index, Ellipsis)


class _Pages(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of a mapping. Arrays over them keep this object alive, instead of the mapping behind it."""


def _pages_of(row: Row, memory: Any) -> NDArray[Any]:
    """Return an array over a mapping of a file; its pages are unmapped after the last use of the array.

    Pages in the page cache are mapped in when touched.
    """
    source, begin, end = row.source, row.offset, row.offset + row.nbytes
    for at in () if is_cached(source, Range(begin, end)) else range(begin, end, _CHUNK):
        nbytes = min(_CHUNK, end - at)
        error = access.populate(memory, at, nbytes)
        if error:
            source.check_unchanged()
            source.fail_reading(at, nbytes, error)
    pages = np.ndarray.__new__(_Pages, (row.nbytes,), np.uint8, memory, begin)
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:  # other tensors share the pages at the edges
        weakref.finalize(pages, drop_pages, memory, first, last - first, private=False).atexit = False
    return np.asarray(row.over(pages))


def _read_ahead(row: Row, part: NDArray[Any]) -> None:
    """Make the system read exactly the bytes of a mapped part: page faults would read around each page."""
    octets = row.source.octets
    start = octets.ctypes.data
    for begin, end in _runs_in(part) if row.source.has_pages and row.geometry is None and part.nbytes else ():
        run = Range(begin - start, end - start)
        if not is_cached(row.source, run):
            access.will_need(octets, run.begin, run.nbytes)


def _runs_in(part: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield begin and end addresses of runs of an array's bytes; short runs include the gaps between them."""
    if part.ndim > 1 and not part.flags.c_contiguous and part[0].nbytes >= _GAP:
        for inner in part:
            yield from _runs_in(inner)
    else:
        reach = [(size - 1) * step for size, step in zip(part.shape, part.strides, strict=True)]
        begin = part.ctypes.data + sum(way for way in reach if way < 0)
        yield begin, begin + sum(map(abs, reach)) + part.itemsize


def packed_rows(name: str, dtype: DType, shape: tuple[int, ...], part: Any) -> range:
    """Return the rows that an index selects in a tensor packed below the byte: a slice of step 1, in whole bytes."""
    first, *others = (part or (slice(None),)) if isinstance(part, tuple) else (part,)
    full = all(
        isinstance(item, slice) and item.indices(n) == (0, n, 1) for item, n in zip(others, shape[1:], strict=False)
    )
    if isinstance(first, slice) and full and shape and math.prod(shape[1:]) * dtype.bits % 8 == 0:
        rows = range(*first.indices(shape[0]))
        if rows.step == 1:
            return rows
    what = f"index of tensor {quoted(name)}, which packs elements of {dtype.bits} bits"
    raise UnsupportedError(what, actual=repr(part)[:80], expected="a slice of rows that are whole bytes, of step 1")


def is_region(part: Any) -> bool:
    """Whether an index has only slices, and for some axes lists of slices to join along the axis."""
    lists = [item for item in part if isinstance(item, list)] if isinstance(part, tuple) else []
    return bool(lists) and all(
        isinstance(item, slice) for items in part for item in (items if isinstance(items, list) and items else [items])
    )


def over_region(
    region: tuple[Any, ...], select: Callable[[tuple[Any, ...]], Any], join: Callable[[Any, int], Any]
) -> Any:
    """Return the results of `select` for all boxes of a region, joined axis by axis."""
    for axis, slices in enumerate(region):
        if isinstance(slices, list):
            boxes = [(*region[:axis], item, *region[axis + 1 :]) for item in slices]
            return join([over_region(box, select, join) for box in boxes], axis)
    return select(region)


def is_plain(index: tuple[Any, ...]) -> bool:
    """Whether an index consists of integers, slices and an ellipsis, which plans take."""
    plain = (int, np.integer, slice, type(Ellipsis))
    return all(isinstance(part, plain) and not isinstance(part, bool) for part in index)


def _box(axes: list[Axis], shape: tuple[int, ...], itemsize: int) -> list[Axis]:
    """Return the part of each axis to read, ascending; neighbours with few bytes between them are joined."""
    box = []
    stride, whole = itemsize, True  # bytes from one position to the next; whether all inner axes are read in full
    for dim in range(len(axes) - 1, -1, -1):
        (start, step, count, _), size = axes[dim], shape[dim]
        if count:
            start, last = sorted((start, start + step * (count - 1)))
            step = abs(step) if count > 1 else 1
            if (step - 1) * stride < _GAP:
                step, count = 1, last - start + 1
            if dim and whole and (size - count) * stride < _GAP:
                start, step, count = 0, 1, size  # joins the runs of all rows
        box.append(Axis(start, step, count, stays=True))
        whole = whole and count == size
        stride *= size
    return box[::-1]


def _within(axis: Axis, read: Axis) -> int | slice:
    """Return the index of the part of an axis in an array with only the elements that were read."""
    if not axis.size:
        return slice(0)
    first, step = (axis.start - read.start) // read.step, axis.step // read.step
    stop = first + step * axis.size
    return slice(first, None if stop < 0 else stop, step) if axis.stays else first


def _axes_added(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index that adds the axes for each None in another index to its result."""
    return tuple(
        part if part is None or part is Ellipsis else slice(None)
        for part in index
        if part is None or part is Ellipsis or isinstance(part, slice)
    )


# safetensors' names of data types, by ours.
_CODES = {name: code for code, name in DTYPE_NAMES.items()}


def code_of(dtype: str) -> str:
    """Return safetensors' name of a data type; "F32" for quantised tensors, which are decoded to float32."""
    return _CODES.get(dtype, "F32")


def dtype_of(file: TensorFile, info: TensorInfo) -> str:
    """Return the type in which a tensor is read: "float32" if its "int8" is a scheme of quantisation, not a type."""
    decoded = info.dtype == "int8" and row_of(file, info.name).dtype.quantized
    return "float32" if decoded else info.dtype


class OpenedFile:
    """A file whose tensors are read for one framework; a `safe_open` and its slices share it.

    The file is closed when the last of them is gone.
    """

    def __init__(self, filename: Any, framework: Framework, device: Any, *, pread: bool, trust: Any = None) -> None:
        self._framework, self._mode = framework, None if pread else framework.mode()
        self._aim(device)
        try:
            self.file: TensorFile = open_stored(filename, mode=self._mode, private=pread, trust=trust)
        except FileNotFoundError as error:
            raise MissingFileError(error.errno, error.strerror, error.filename) from None
        self._remote = is_remote(self.file)
        self.pread: bool = pread and not self._remote
        self._convert = framework.deliver
        self.copies: bool = framework.deliver is not None and not framework.devices  # PyTorch shares memory

    def _aim(self, device: Any) -> None:
        """Note the device for tensors."""
        self.device: Any = None
        if self._framework.devices:
            from weightmap.torch._tensors import torch_device

            self.device = torch_device("cpu" if device is None else device, here=False)  # loading checks it
        elif device not in {None, "cpu"}:
            raise UnsupportedError("device", expected=f"cpu, for {self._framework.name}", actual=repr(device))
        self._away = self.device is not None and self.device.type != "cpu"
        self._memories: dict[Any, Any] = {}  # mappings of this reader alone

    def aimed(self, device: Any) -> OpenedFile:
        """Return a reader of the same file for a device, by default the same device."""
        reader = copy.copy(self)
        reader._aim(self.device if device is None else device)  # noqa: SLF001 - of this class
        return reader

    def check(self, name: str) -> None:
        """Raise the error for a name that no tensor has, in the words of safetensors."""
        if name not in self.file:
            what = f"File does not contain tensor {quoted(name)}{suggestion(name, self.file)}"
            raise TensorNotFoundError(what, path=self.file.path, format=self.file.format)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of their data, shard after shard for a model in several."""
        file = self.file
        if file.shards:  # offsets count within the shard
            return list(file)
        spans, names = spans_of(file), list(file)
        order = np.lexsort((spans.begin + spans.nbytes, spans.begin))
        return [names[row] for row in spans.row[order].tolist()]

    def slice_of(self, name: str) -> SafeSlice:
        """Return the slice object of a tensor."""
        return SafeSlice(self, name)

    def loaded(self, name: str) -> Any:
        """Return a tensor that is needed now; read a small one by itself, because page faults would read around it."""
        row = row_of(self.file, name)
        if row.nbytes < _SMALL and row.source.has_pages and not (self._away or self.pread):
            _read_ahead(row, row.source.octets[row.offset : row.offset + row.nbytes])
        return self.whole(name)

    def whole(self, name: str) -> Any:
        """Return a tensor."""
        file = self.file
        if self._away:
            return _load_tensors(file, [name], self.device)[name]
        value = read_whole(file, name) if self.pread else file[name] if self.device is None else None
        if self.device is not None:
            return _read_tensor(file, name, value)
        return self._delivered(name, value)

    def _delivered(self, name: str, value: Any) -> Any:
        """Return a value of the file as a tensor of the framework, decoded if quantised."""
        if not isinstance(value, np.ndarray):
            value = value.dequantize() if self._remote else self.file.read(name, np.float32)
        return self.deliver(name, value)

    def every(self, names: list[str]) -> dict[str, Any]:
        """Return all tensors, in the order of these names. Whole files take a tenth of the time of single tensors."""
        file = self.file
        if self._away:
            tensors: dict[str, Any] = _load_tensors(file, names, self.device)
            return tensors
        if self.pread:
            return {name: self.whole(name) for name in names}
        if self.device is not None:
            from weightmap.torch._files import shared

            tensors = shared(file)
        else:
            tensors = {name: self._delivered(name, value) for name, value in file.items()}
        return tensors if list(tensors) == names else {name: tensors[name] for name in names}

    def part(self, name: str, index: Any) -> Any:
        """Return part of a tensor: an array of no dimension for one element."""
        index = _with_ellipsis(index)
        file = self.file
        try:
            if self._away and is_plain(index):
                np.broadcast_to(np.uint8(0), file.info(name).shape)[index]  # for numpy's errors
                return _load_tensors(file, {name: index}, self.device)[name]
            value = None if self.pread or self._remote else file[name]
            if not isinstance(value, np.ndarray):  # quantised tensors are read, not mapped, before decoding
                return self.deliver(name, read_part(file, name, index))
            array = value[index]
            if _AHEAD <= array.nbytes < value.nbytes:
                _read_ahead(row_of(file, name), array)
            return self.deliver(name, array)
        except TensorFileError:
            raise
        except (IndexError, OverflowError, ValueError) as error:
            raise SliceError.of(index, file.info(name).shape, error) from None

    def resident(self, name: str, part: Any, run: Row | None) -> Any:
        """Return a tensor, or part of one, whose bytes are in memory: pages of the mapping if it has a `run`."""
        row = row_of(self.file, name)
        if is_region(part):
            if self._away:
                return over_region(part, partial(self.part, name), imported("torch", "torch").cat)
            array = over_region(part, lambda box: read_part(self.file, name, (*box, ...)), np.concatenate)
            return self.deliver(name, array)
        if row.dtype.packed and part is not None:
            return self._packed_rows(name, packed_rows(name, row.dtype, row.shape, part))
        if self._away or self._remote or self.pread:
            return self.whole(name) if part is None else self.slice_of(name)[part]
        if run is not None:
            memory = self._memory_of(run) if run.nbytes else None
            array = np.asarray(run.array()) if memory is None else _pages_of(run, memory)
        elif part is None:
            array = read_whole(self.file, name)
        else:
            array = read_part(self.file, name, _with_ellipsis(part if isinstance(part, tuple) else (part,)))
        if part is None and self.device is not None:
            return _read_tensor(self.file, name, array)
        return self.deliver(name, array)

    def run_of(self, name: str, part: Any) -> Row | None:
        """Return a row if a tensor, or part of one, is a single run of bytes in a mapping; else None."""
        row = row_of(self.file, name)
        if self._away or self._remote or self.pread or row.geometry is not None or row.dtype.quantized:
            return None
        if part is None:
            return row
        key = part if isinstance(part, tuple) else (part,)
        if row.dtype.packed or not is_plain(key):
            return None
        axes = axes_of(key, row.shape, name)
        starts, length = runs_of(axes, row.shape, name)
        if len(starts) != 1 or any(axis.step != 1 for axis in axes):
            return None
        itemsize, shape = numpy_dtype(row.dtype).itemsize, tuple(axis.size for axis in axes if axis.stays)
        return row._replace(shape=shape, offset=row.offset + int(starts[0]) * itemsize, nbytes=length * itemsize)

    def _memory_of(self, row: Row) -> Any:
        """Return this reader's own mapping of a row's file, whose pages it may release; None if it cannot be mapped."""
        source = row.source
        source.check_unchanged()
        if source not in self._memories and source.has_pages:
            try:
                self._memories[source] = access.map_file(source.descriptor, source.size, self._mode or "mmap", None)[1]
            except OSError:  # the file system maps no files
                return None
        return self._memories.get(source)

    def _packed_rows(self, name: str, rows: range) -> Any:
        """Return rows of a tensor packed below the byte, in private memory."""
        row = dense_row(self.file, name)
        row_nbytes = row.nbytes // (row.shape[0] or 1)
        row.source.check_unchanged()
        octets = access.empty(len(rows) * row_nbytes, np.uint8)
        row.source.read_into(row.offset + rows.start * row_nbytes, octets)
        if self.device is None:
            return self.deliver(name, octets)
        from weightmap.torch._tensors import in_pairs

        part = row._replace(shape=(len(rows), *row.shape[1:]), nbytes=octets.nbytes)
        return in_pairs(self.deliver(name, octets), part)

    def deliver(self, name: str, array: NDArray[Any]) -> Any:
        """Return an array of this tensor as it is, or as a tensor on the device."""
        if (self._away or self.copies) and not array.flags.c_contiguous:
            check_copied(self.file, name, array.nbytes)
        if not self._away:
            return array if self._convert is None else self._convert(array)
        return wm.torch.to_device(array, self.device)


class SafeSlice:
    """Part of a tensor on demand: ``handle.get_slice(name)[2:5, ::-1]``. It keeps the file open."""

    def __init__(self, reader: OpenedFile, name: str) -> None:
        self._reader = reader
        self._name = name

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._reader.file.info(self._name).shape)

    @property
    def stored_dtype(self) -> str:
        """Return our name of the type, such as "bfloat16"."""
        return dtype_of(self._reader.file, self._reader.file.info(self._name))

    def get_dtype(self) -> str:
        """Return safetensors' name of the type: ``"F32"``, ``"BF16"`` … (``"F32"`` for quantised tensors)."""
        return code_of(self.stored_dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return numpy's result for this index, always as an array (without dimensions for a single element).

        Raises
        ------
        SliceError
            For an index that makes numpy raise IndexError or ValueError (SliceError derives from both): too many
            indices, out of bounds, a step of 0.
        UnsupportedError
            For a part of a tensor whose elements are packed below the byte.
        """
        if index is Ellipsis:  # as transformers loads a tensor
            return self._reader.loaded(self._name)
        parts = index if isinstance(index, tuple) else (index,)
        stored = DTYPES.get(self.stored_dtype)
        if stored is None or not stored.packed:
            return self._reader.part(self._name, parts)
        if all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts):
            return self._reader.whole(self._name)
        what = f"tensor {self._name!r} packs elements of {stored.bits} bits, which cannot be sliced"
        raise UnsupportedError(f"{what}: get_tensor gives their bytes")


# -------------------------------------------------------------------------------- errors of safetensors' classes too


class MissingFileError(FileNotFoundError):
    """The file does not exist: the system's error, in the words of safetensors."""

    def __str__(self) -> str:
        return f"No such file or directory: {self.filename}"


class SliceError(TensorFileError, IndexError, ValueError):
    """A slice reaches out of the tensor, or has a step of 0."""

    @classmethod
    def of(cls, index: tuple[Any, ...], shape: tuple[int, ...], error: Exception) -> SliceError:
        """Return the error for an index that numpy refused, in safetensors' words if it has any."""
        parts = index[: next(axis for axis, part in enumerate(index) if part is Ellipsis)]
        for dim, (part, size) in enumerate(zip(parts, shape, strict=False)):
            if isinstance(part, int) and part < -size:
                return cls(f"Invalid index {part} for dimension {dim} of size {size}")
            if isinstance(part, int) and part >= size:
                what = f"Error during slicing [{', '.join(map(_spelt, parts))}] with shape {list(shape)}"
                return cls(f"{what}: index {part} out of bounds for tensor dimension #{dim} of size {size}")
        return cls(str(error))


def _spelt(part: Any) -> str:
    if not isinstance(part, slice):
        return str(part)
    start, stop = ("" if bound is None else str(bound) for bound in (part.start, part.stop))
    return f"{start}:{stop}" + ("" if part.step is None else f":{part.step}")
