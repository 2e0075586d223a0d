"""Scans in C: from the bytes of a header to columns; records that are used in place, and pairs of strings."""

from __future__ import annotations

import sys
from operator import le
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.native import access
from weightmap.core.native.access import NULL, U32_MAX, ffi, from_buffer, lib, module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


# Fewest bytes of a tensor in a JSON header: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]},
_JSON_ENTRY = 48
# Dimensions reserved per tensor; a header with more is scanned again, with room for the most that it can spell.
_DIMS = 4


def scan_json(header: bytes, dtypes: bytes, max_tensors: int) -> tuple[Columns, Any] | access.Fault:
    """Turn the JSON header of a safetensors file into columns, or return its first fault.

    Parameters
    ----------
    header : bytes
        From ``{`` to ``}`` and trailing spaces.
    dtypes : bytes
        The known names of dtypes, each in 16 bytes padded with zero bytes.
    max_tensors : int
        More are a fault CAPACITY.

    Returns
    -------
    columns : Columns
        In the order of the text.
    scan : wm_safetensors
        See kernels.h.
    """
    size = len(header)
    count, n_dtypes = min(size // _JSON_ENTRY + 1, max_tensors), len(dtypes) // 16
    scan = ffi.new("wm_safetensors *")
    columns = Columns.scratch(size, count, _DIMS * count)
    if lib.wm_safetensors_scan(header, size, dtypes, n_dtypes, columns.native, scan, NULL):
        fault = ffi.new("wm_fault *")
        columns = Columns.scratch(size, count, size // 2 + 1)
        if lib.wm_safetensors_scan(header, size, dtypes, n_dtypes, columns.native, scan, fault):
            return access.fault_of(fault)
    columns.count, columns.n_dims, columns.names_len = scan.n_tensors, scan.n_dims, scan.names_len
    return columns, scan


def json_depth(text: bytes) -> int:
    """Return the depth of nested objects and arrays in a JSON text.

    For invalid JSON, a parser reaches at most this depth before the error.
    """
    depth: int = lib.wm_json_depth(text, len(text))
    return depth


# Fewest bytes of a tensor in a bincode header: an empty name, dtype, no dimensions, start, end.
_BINCODE_ENTRY = 5


def scan_bincode(header: bytes | bytearray, layouts: int, max_tensors: int) -> tuple[Columns, Any, access.Fault | None]:
    """Turn the header of a BinTensors file into columns, and return its first fault.

    Parameters
    ----------
    header : bytes or bytearray
        With its padding.
    layouts : int
        1 the specification's, 2 the current one, 3 the first of both that fits.
    max_tensors : int
        More are a fault CAPACITY, at the offset of the next one.

    Returns
    -------
    columns : Columns
        In file order.
    scan : wm_bintensors
        See kernels.h.
    fault : Fault or None
    """
    size = len(header)
    columns = Columns.scratch(size, min(size // _BINCODE_ENTRY + 1, max_tensors), size)
    scan, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    data = header if type(header) is bytes else from_buffer("uint8_t[]", header)
    failed = lib.wm_bintensors_scan(data, size, layouts, columns.native, scan, fault)
    columns.count, columns.n_dims, columns.names_len = scan.n_tensors, scan.n_dims, scan.names_len
    return columns, scan, access.fault_of(fault) if failed else None


# Room for the name of a layer, and the size of its record, in bytes.
_LAYER_NAME, _LAYER_RECORD = 32, 20


def scan_layers(records: bytes) -> tuple[Columns, Any] | access.Fault:
    """Turn the layer records of a CNN v2 file into columns, or return their first fault.

    Parameters
    ----------
    records : bytes
        20 for each layer.

    Returns
    -------
    columns : Columns
        Offsets in bytes, relative to the weights.
    scan : wm_cnn
        See kernels.h.
    """
    count = len(records) // _LAYER_RECORD
    columns = Columns.scratch(_LAYER_NAME * count, count, 4 * count)
    scan, fault = ffi.new("wm_cnn *"), ffi.new("wm_fault *")
    failed = lib.wm_cnn_layers(records, len(records), count, columns.native, scan, fault)
    if failed:
        return access.fault_of(fault)
    columns.names_len = scan.names_len
    return columns, scan


# For valid data no wm_fault is allocated, which would be a good part of a call's time. A failed check is repeated with
# one. If it then succeeds, because the file is being written to, the data counts as valid.
def pairs_check(data: bytes, count: int) -> access.Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    if lib.wm_pairs_check(data, len(data), count, NULL) == 0:
        return None
    fault = ffi.new("wm_fault *")
    return access.fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8], count: int, rules: Any, data_size: int, room: int, *, lax: bool
) -> int | access.Fault:
    """Check `count` records of an index by a wm_rules, and the names behind them.

    Returns the bytes of the names, or the fault of a record or a name.
    """
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    arguments = (data, len(data), count, rules, data_size, room, lax)
    used: int = lib.wm_records_check(*arguments, NULL)
    if used < 0:
        fault = ffi.new("wm_fault *")
        used = lib.wm_records_check(*arguments, fault)
    return access.fault_of(fault) if used < 0 else used


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record called `name`, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row


def records_bounds(index: bytes | NDArray[np.uint8], count: int) -> tuple[int, memoryview[int]]:
    """Return the end of the last name after `count` records, and the bounds of all names, modulo 2**32."""
    bounds = ffi.new("uint32_t[]", count + 1)
    end: int = lib.wm_records_bounds(from_buffer("uint8_t[]", index), len(index), count, bounds)
    return end, memoryview(ffi.buffer(bounds)).cast("I")


# Room for bytes of names, tensors and dimensions. Most models fit; a larger one is scanned twice.
_ROOM = (16384, 512, 1024)
# Least bytes of a record and of a dimension.
_RECORD, _DIM = 12, 4


# For data that needs no hook.
_NO_HOOK = (NULL, NULL)


class Section:
    """A section of records in an AMB file: see wm_amb_section in scans.h."""

    __slots__ = ("bare", "begin", "data", "end", "fd", "max_names", "max_tensors")

    def __init__(
        self,
        fd: int,
        data: Any,
        begin: int,
        end: int,
        max_tensors: int,
        max_names: int,
        bare: tuple[int, int],
    ) -> None:
        self.fd: int = fd  # -1 if the file is `data`, an array or a Reader
        self.data: Any = data
        self.begin: int = begin  # of the section in the file, like `end`
        self.end: int = end
        self.max_tensors: int = max_tensors
        self.max_names: int = max_names
        self.bare: tuple[int, int] = bare  # block size and bytes of a scale for blocks without a header, or zeros


# The field of a fault, by the WM_AMB_ constants.
SECTION_FIELDS = (
    *("name_length", "name", "ndim", "shape", "dtype", "data_size"),
    *("quant_type", "block_size", "scale_type", "padding"),
)


def scan_section(section: Section, *, relative: bool, lax: bool) -> tuple[Columns, Any, access.Fault | None]:
    """Turn the records of a section into columns, and return their first fault.

    Parameters
    ----------
    section : Section
    relative : bool
        Whether padding counts from the beginning of the section instead of the file.
    lax : bool
        Whether missing or nonzero padding is noted in `scan` instead of being a fault.

    Returns
    -------
    columns : Columns
        In file order; offsets relative to the section. Meaningless with a fault.
    scan : wm_amb
        See kernels.h.
    fault : Fault or None
    """
    size = section.end - section.begin
    limits = (size, size // _RECORD, size // _DIM)
    room = (min(_ROOM[0], limits[0]), min(_ROOM[1], limits[1], section.max_tensors), min(_ROOM[2], limits[2]))
    columns, scan, fault = _walk(section, room, relative=relative, lax=lax)
    needed = (scan.names_len, scan.n_tensors, scan.n_dims)
    if fault is None and any(need > have for need, have in zip(needed, room, strict=True)):
        room = needed
        columns, scan, fault = _walk(section, room, relative=relative, lax=lax)
        needed = (scan.names_len, scan.n_tensors, scan.n_dims)
        if fault is None and any(need > have for need, have in zip(needed, room, strict=True)):
            # The file is being written to.
            fault = access.Fault(lib.WM_FAULT_AMB_READ, scan.n_tensors, section.end, 0, 0)
    columns.names_len, columns.count, columns.n_dims = needed
    return columns, scan, fault


def _walk(
    section: Section, room: tuple[int, int, int], *, relative: bool, lax: bool
) -> tuple[Columns, Any, access.Fault | None]:
    columns = Columns.scratch(*room)
    function, context = getattr(section.data, "hook", _NO_HOOK)
    data = None if function else section.data
    octets = NULL if data is None else from_buffer("uint8_t[]", data)
    # In the order of kernels.h.
    request = ffi.new(
        "wm_amb_section *",
        (
            section.fd,
            lax,
            octets,
            0 if data is None else len(data),
            section.begin,
            section.end,
            section.begin if relative else 0,
            min(section.max_tensors, U32_MAX),
            min(section.max_names, U32_MAX - 1),
            *section.bare,
            function,
            context,
        ),
    )
    scan, fault = ffi.new("wm_amb *"), ffi.new("wm_fault *")
    failed = lib.wm_amb_walk(request, columns.native, scan, fault)
    if function:
        section.data.check()
    return columns, scan, access.fault_of(fault) if failed else None


# The marks of a row of an ONNX model: see wm_onnx_scan in scans.h.
ONNX_MADE: int = lib.WM_ONNX_MADE
ONNX_EXTERNAL: int = lib.WM_ONNX_EXTERNAL
_ONNX_NESTED, _ONNX_FUNCTION = 1 << lib.WM_ONNX_NESTED_BIT, 1 << lib.WM_ONNX_FUNCTION_BIT
# Room for bytes of names, tensors, dimensions, other files and bytes of metadata; a larger model is scanned twice.
_MODEL_ROOM = (16384, 512, 1024, 1, 4096)


class Initialisers:
    """The initialisers of an ONNX model: see wm_onnx_scan in scans.h.

    Attributes
    ----------
    columns : Columns
    at : ndarray of uint64, shape (n,)
        The offset of each.
    nested : ndarray of bool, shape (n,)
        Whether it lies in a node, in a graph within another, in a function or in training_info.
    in_function : ndarray of bool, shape (n,)
    files : list of (int, int, int, int, int)
        For initialisers in other files: the first row, offset and size of the file's name, offset and size of a
        checksum.
    fields : bytes
        The fields of the model without its graph.
    scan : wm_onnx
    """

    __slots__ = ("at", "columns", "fields", "files", "in_function", "nested", "scan")

    def __init__(
        self,
        columns: Columns,
        at: NDArray[np.uint64],
        files: list[tuple[int, int, int, int, int]],
        fields: bytes,
        scan: Any,
    ) -> None:
        self.columns: Columns = columns
        self.at: NDArray[np.uint64] = at & (_ONNX_FUNCTION - 1)
        self.nested: NDArray[np.bool_] = at >= _ONNX_NESTED
        self.in_function: NDArray[np.bool_] = at & _ONNX_FUNCTION != 0
        self.files: list[tuple[int, int, int, int, int]] = files
        self.fields: bytes = fields
        self.scan: Any = scan


def scan_model(
    source: tuple[int, Any], size: int, max_tensors: int, max_kept: int, *, lax: bool = False
) -> tuple[Initialisers, access.Fault | None]:
    """Find the initialisers of an ONNX model, and return its first fault.

    Parameters
    ----------
    source : (int, bytes-like or Reader)
        See `Source.c_input`.
    size : int
        The file's.
    max_tensors, max_kept : int
        More are a fault: tensors, and bytes of names and of metadata.
    lax : bool
        List an initialiser that cannot be read, with the data_type 0, instead of a fault.
    """
    limits = (max_kept, max_tensors, size, size, max_kept)
    room = tuple(map(min, _MODEL_ROOM, limits))
    while True:
        columns, at, files, fields, scan, fault = _scan_model(source, size, max_tensors, max_kept, room, lax=lax)
        needed = (scan.names_len, scan.n_tensors, scan.n_dims, scan.n_files, scan.kept_len)
        if fault is not None or all(map(le, needed, room)):
            columns.names_len, columns.count, columns.n_dims = needed[:3]
            return Initialisers(columns, at[: needed[1]], files, fields[: needed[4]], scan), fault
        room = tuple(map(max, needed, room))  # grows again only while the file is being written to


def _scan_model(
    source: tuple[int, Any], size: int, max_tensors: int, max_kept: int, room: tuple[int, ...], *, lax: bool
) -> tuple[Columns, NDArray[np.uint64], list[tuple[int, int, int, int, int]], bytes, Any, access.Fault | None]:
    fd, data = source
    names_room, tensors_room, dims_room, files_room, kept_room = room
    columns, at = Columns.scratch(names_room, tensors_room, dims_room), np.empty(tensors_room, np.uint64)
    function, context = getattr(data, "hook", _NO_HOOK)
    octets = NULL if function or data is None else from_buffer("uint8_t[]", data)
    files, fields = ffi.new("wm_onnx_place[]", files_room), bytearray(kept_room)
    limits = (min(max_tensors, U32_MAX), min(max_kept, U32_MAX - 1), max_kept)
    filled = (access.as_output(at, "uint64_t[]"), files, from_buffer("uint8_t[]", fields), files_room, kept_room)
    request = ffi.new("wm_onnx_file *", (fd, octets, size, *limits, *filled, lax, function, context))
    scan, fault = ffi.new("wm_onnx *"), ffi.new("wm_fault *")
    failed = lib.wm_onnx_scan(request, columns.native, scan, fault)
    if function:
        data.check()
    places = [(p.row, p.path, p.path_len, p.sum, p.sum_len) for p in files[0 : min(scan.n_files, files_room)]]
    return columns, at, places, bytes(fields), scan, access.fault_of(fault) if failed else None


def make_numbers(data: bytes, field: int, bits: int, out: NDArray[np.uint8], count: int) -> access.Fault | None:
    """Make elements of `bits` bits from the numbers in these fields of an ONNX tensor; return a fault or None."""
    fault = ffi.new("wm_fault *")
    failed = lib.wm_onnx_numbers(data, len(data), field, bits, count, access.as_output(out, "uint8_t[]"), fault)
    return access.fault_of(fault) if failed else None


# The fewest bytes of a key-value and of a tensor info, in any version.
MIN_GGUF_VALUE, MIN_GGUF_TENSOR = 9, 20
_GGUF_DIMS: int = lib.WM_GGUF_NDIM
MAX_GGUF_KEY: int = lib.WM_GGUF_KEY
GGUF_DEEPEST: int = lib.WM_GGUF_DEPTH
GGUF_TYPES: int = lib.WM_GGUF_TYPES


def ggml_block(number: int) -> tuple[int, int]:
    """Return elements and bytes of a block of the ggml type with this number."""
    return lib.wm_ggml_elements(number), lib.wm_ggml_bytes(number)


def gguf_types(blocks: Sequence[tuple[int, int, int]]) -> Any:
    """Return a table for `GGUFHeader.tensors` from code, block elements and block bytes of each type."""
    types = ffi.new("wm_gguf_type[]", lib.WM_GGUF_TYPES)
    for code, elements, octets in blocks:
        types[code] = (elements, octets)
    return types


class GGUFHeader:
    """A scan in progress: see wm_gguf in scans.h, whose fields are attributes too.

    Parameters
    ----------
    limit : int
        Position that no field may reach past.
    pos : int
        Position of the first key-value.
    count, n_tensors, version, big
        From the file: number of key-values and of tensors, version, whether it is big-endian.
    lax : bool
        Whether tensors may have types that the caller does not know, and more than four dimensions.

    Attributes
    ----------
    others : tuple of int
        The codes of such types, once `tensors` has found them; the dtype of the first is `GGUF_TYPES`.
    """

    __slots__ = ("_keys", "_room", "native", "others")

    def __init__(
        self, limit: int, pos: int, count: int, n_tensors: int, version: int, *, big: bool, lax: bool = False
    ) -> None:
        self.native: Any = ffi.new("wm_gguf *", (limit, pos, count, n_tensors, version, big, lax))
        self._keys: Any = NULL
        self._room = 0
        self.others: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def values(self, data: bytes | bytearray) -> access.Fault | bool:
        """Continue scanning key-values: return True at their end, False if more data is needed, or a fault."""
        native = self.native
        room = min(native.count, len(data) // MIN_GGUF_VALUE + 1)
        if room > self._room:
            keys = ffi.new("uint32_t[]", 2 * room)
            ffi.memmove(keys, self._keys, 8 * native.n_keys)
            self._keys, self._room = keys, room
        fault = ffi.new("wm_fault *")
        state = lib.wm_gguf_values(from_buffer("uint8_t[]", data), len(data), self._keys, room, native, fault)
        return access.fault_of(fault) if state < 0 else state == 0

    def tensors(self, data: bytes | bytearray, types: Any, max_tensors: int) -> tuple[Columns, access.Fault | bool]:
        """Scan tensor infos; return columns and a state as `values` does. More than `max_tensors`: a CAPACITY fault."""
        native = self.native
        remaining = len(data) - native.pos
        count = min(native.n_tensors, remaining // MIN_GGUF_TENSOR + 1, max_tensors)
        # A dimension takes at least 4 bytes of the header.
        columns = Columns.scratch(remaining, count, remaining // 4 if native.lax else _GGUF_DIMS * count)
        fault = ffi.new("wm_fault *")
        octets = from_buffer("uint8_t[]", data)
        state = lib.wm_gguf_tensors(octets, len(data), types, columns.native, native, fault)
        columns.n_dims, columns.names_len = native.n_dims, native.names_len
        if native.n_others:
            self.others = tuple(native.others[0 : native.n_others])
        return columns, access.fault_of(fault) if state < 0 else state == 0

    def reach(self, columns: Columns, room: int) -> None:
        """Extend each tensor of an unknown type to the next tensor's data, the last one to `room`."""
        lib.wm_gguf_reach(columns.native, room, self.native)

    def find(self, data: bytes | bytearray, key: bytes) -> int:
        """Return the position of the value (its type) of a key, or -1."""
        native = self.native
        keys = self._keys
        octets = from_buffer("uint8_t[]", data)
        row = lib.wm_gguf_find(octets, len(data), keys, native.n_keys, key, len(key))
        return -1 if row < 0 else keys[2 * row + 1]

    def keys(self) -> NDArray[np.uint32]:
        """Return the bounds of each key, shape (n_keys, 2)."""
        count = self.native.n_keys
        return np.frombuffer(ffi.buffer(self._keys, 8 * count), np.uint32).reshape(count, 2).copy()

    def skip(self, data: bytes | bytearray, pos: int) -> int:
        """Return the end of the array whose item type is at `pos`."""
        native = self.native
        end: int = lib.wm_gguf_array(from_buffer("uint8_t[]", data), len(data), pos, native.version, native.big)
        return end

    def strings(self, data: NDArray[np.uint8], count: int) -> tuple[NDArray[np.uint32], int]:
        """Return the bounds of an array of strings, and its end; -1 - i if string i does not fit."""
        bounds = np.empty(count + 1, np.uint32)
        native, octets = self.native, access.as_input(data)
        out = access.as_output(bounds, "uint32_t[]")
        end = lib.wm_gguf_strings(octets, len(octets), count, native.version, native.big, out)
        return bounds, end


# ----------------------------------------------------------------------------------------------------
# The directory of a ZIP archive, and the pickle of a PyTorch checkpoint, read in C without making Python objects.

if sys.platform == "win32":
    import mmap

# Least bytes of an entry in the central directory.
MIN_ZIP_ENTRY = 46
# Most bytes to allocate with malloc, which may keep freed memory.
_MAX_MALLOC = 1 << 17
_OF_DTYPE = {"u1": "uint8_t[]", "u2": "uint16_t[]", "u4": "uint32_t[]", "u8": "uint64_t[]"}


def transient(count: int, dtype: type[Any]) -> NDArray[Any]:
    """Return an uninitialised array whose memory is reused, or given back, once it is collected.

    Malloc may keep the pages of a large array until the process ends.
    """
    nbytes = count * np.dtype(dtype).itemsize
    return np.empty(count, dtype) if nbytes < _MAX_MALLOC else np.frombuffer(_pages(nbytes), dtype)


def _pages(nbytes: int) -> Any:
    """Return private memory whose pages exist once they are touched."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    return module.map_file(-1, nbytes, 3)


class ZipEntries:
    """The entries of an archive, as columns, in the order of its directory.

    Attributes
    ----------
    names : ndarray of uint8
        With room behind the last name.
    bounds : ndarray of uint32, shape (n + 1,)
        Name i is names[bounds[i] : bounds[i + 1]].
    method : ndarray of uint16, shape (n,)
        0 stored, 8 deflated.
    later : ndarray of uint8, shape (n,)
        Whether a data descriptor may follow.
    crc : ndarray of uint32, shape (n,)
    stored, size : ndarray of uint64, shape (n,)
        Bytes in the file, and when inflated.
    offset, data : ndarray of uint64, shape (n,)
        The offsets of the entry's header and of its bytes.
    native : wm_zip_entries
    arrays : NpyHeaders or None
    """

    __slots__ = (
        *("_memory", "arrays", "bounds", "crc", "data", "later", "method", "names", "native", "offset", "size"),
        "stored",
    )

    def __init__(self, count: int, names: int) -> None:
        self.names: NDArray[np.uint8] = transient(names, np.uint8)
        self.bounds: NDArray[np.uint32] = transient(count + 1, np.uint32)
        self.method: NDArray[np.uint16] = transient(count, np.uint16)
        self.later: NDArray[np.uint8] = transient(count, np.uint8)
        self.crc: NDArray[np.uint32] = transient(count, np.uint32)
        self.stored: NDArray[np.uint64] = transient(count, np.uint64)
        self.size: NDArray[np.uint64] = transient(count, np.uint64)
        self.offset: NDArray[np.uint64] = transient(count, np.uint64)
        self.data: NDArray[np.uint64] = transient(count, np.uint64)
        self.arrays: NpyHeaders | None = None
        columns = self.names, self.bounds, self.method, self.later, self.crc
        kinds = ("uint8_t[]", "uint32_t[]", "uint16_t[]", "uint8_t[]", "uint32_t[]", *("uint64_t[]",) * 4)
        self._memory = tuple(map(from_buffer, kinds, (*columns, self.stored, self.size, self.offset, self.data)))
        self.native: Any = ffi.new("wm_zip_entries *", (count, *self._memory))

    def __len__(self) -> int:
        return len(self.method)

    def check_order(self, end: int) -> access.Fault | None:
        """Check that entries follow one another from byte 0 to `end`; return the first fault, or None."""
        offset = self.offset
        rising = bool((offset[1:] >= offset[:-1]).all())
        order = NULL if rising else access.as_items("uint64_t[]", np.argsort(offset, kind="stable").astype(np.uint64))
        fault = ffi.new("wm_fault *")
        return access.fault_of(fault) if lib.wm_zip_order(self.native, order, end, fault) else None


def zip_scan(
    fd: int, data: Any, end: int, central: bytes | NDArray[np.uint8], count: int, *, arrays: bool = False
) -> ZipEntries | access.Fault:
    """Turn a central directory into columns, checked against the headers of the entries; or return the first fault.

    Parameters
    ----------
    fd : int
        The open file; -1 where `data` has its bytes.
    data : ndarray of uint8, Reader or None
    end : int
        Offset of the central directory in the file.
    central : bytes or ndarray of uint8
    count : int
        Number of its entries.
    arrays : bool
        Whether to read the headers of arrays too.
    """
    entries = ZipEntries(count, len(central))
    headers = entries.arrays = NpyHeaders(count, len(central)) if arrays else None
    function, context = getattr(data, "hook", _NO_HOOK)
    octets = NULL if data is None or function else access.as_input(data)
    source, fault = ffi.new("wm_zip_source *", (fd, octets, end, function, context)), ffi.new("wm_fault *")
    out = NULL if headers is None else headers.native
    failed = lib.wm_zip_scan(source, access.as_input(central), len(central), entries.native, out, fault)
    if function:
        data.check()
    if failed:
        return access.fault_of(fault)
    if headers is not None:
        headers.columns.names_len, headers.columns.n_dims = headers.native.names_len, headers.native.n_dims
    return entries


NPY_ODD: int = lib.WM_NPY_ODD


# Room for dimensions; Python reads the headers of arrays that do not fit.
_NPY_DIMS = 8


class NpyHeaders:
    """The headers of the members of an .npz archive: see wm_npy in archives.h.

    Attributes
    ----------
    columns : Columns
        A dtype is a number in `kinds`, or `NPY_ODD` for a member that was not read.
    fortran : ndarray of uint8, shape (n,)
    native : wm_npy
    """

    __slots__ = ("columns", "fortran", "native")

    def __init__(self, count: int, names: int) -> None:
        self.columns: Columns = Columns.scratch(names, count, _NPY_DIMS * count)
        self.fortran: NDArray[np.uint8] = transient(count, np.uint8)
        self.native: Any = ffi.new("wm_npy *", (self.columns.native, from_buffer("uint8_t[]", self.fortran)))

    @property
    def kinds(self) -> list[str]:
        """The types of arrays, such as "<f4"."""
        texts = (kind.to_bytes(8, "little") for kind in self.native.kinds[0 : self.native.n_kinds])
        return [text.rstrip(b"\0").decode("ascii") for text in texts]


PICKLE_STRIDED: int = lib.WM_PICKLE_STRIDED
# The numbers of the kinds of values.
PICKLE_VALUES = {
    name: getattr(lib, f"WM_PICKLE_{name}")
    for name in (
        *("NONE", "BOOLEAN", "INTEGER", "LONG", "REAL", "TEXT", "BYTES", "LATIN"),
        *("DTYPE", "DEVICE", "KIND", "SCALAR", "COMPLEX", "PATH", "ARRAY", "ODD"),
    )
}
# Names for objects that are neither tensor nor value, by number.
PICKLE_ODD = {
    getattr(lib, f"WM_PICKLE_ODD_{name}"): name
    for name in ("UNKNOWN", "CONJUGATE", "NEGATIVE", "STORAGE", "CLASS", "KEY", "ARRAY")
}
# Words of the arena for each byte of a program, and in addition; bytes of a program per word of the memo's directory.
_WORDS, _MIN_WORDS, _PAGE = 4, 1024, 256
_NAMES, _MIN_NAMES = 32, 1 << 16
# Does not clear memory, because a scan fills it.
_new_words = ffi.new_allocator(should_clear_after_alloc=False)


class PickleValues:
    """The values of a checkpoint that are not tensors, as columns: see wm_pickle_values in kernels.h.

    Attributes
    ----------
    names, bounds : ndarray
    kind : ndarray of uint8, shape (n,)
        See `PICKLE_VALUES`. The parts of a value follow it, without names.
    length : ndarray of uint32, shape (n,)
    at : ndarray of uint64, shape (n,)
        The place of the value in the program, or the value itself.
    """

    __slots__ = ("at", "bounds", "kind", "length", "names")

    def __init__(self, count: int, names: int) -> None:
        self.names: NDArray[np.uint8] = transient(names, np.uint8)
        self.bounds: NDArray[np.uint32] = transient(count + 1, np.uint32)
        self.kind: NDArray[np.uint8] = transient(count, np.uint8)
        self.length: NDArray[np.uint32] = transient(count, np.uint32)
        self.at: NDArray[np.uint64] = transient(count, np.uint64)


class PickleStorages:
    """Mentions of storages, as columns: see wm_pickle_storages in archives.h.

    Attributes
    ----------
    names : bytes
    bounds : ndarray of uint32, shape (n + 1,)
        Name i, the prefix and the key, is names[bounds[i] : bounds[i + 1]].
    at : ndarray of uint64, shape (n,)
        Offset of the key in the program.
    nbytes : ndarray of uint64, shape (n,)
        The storage's bytes, according to the program.
    item : ndarray of uint8, shape (n,)
        Bytes of an element.
    type : ndarray of uint8, shape (n,)
        The code of its type: see csrc/formats/pickle_calls.c.
    """

    __slots__ = ("at", "bounds", "item", "names", "nbytes", "type")

    def __init__(self, count: int) -> None:
        self.names: bytes = b""
        self.bounds: NDArray[np.uint32] = transient(count + 1, np.uint32)
        self.at: NDArray[np.uint64] = transient(count, np.uint64)
        self.nbytes: NDArray[np.uint64] = transient(count, np.uint64)
        self.item: NDArray[np.uint8] = transient(count, np.uint8)
        self.type: NDArray[np.uint8] = transient(count, np.uint8)


class Pickle:
    """A pickle program that has been run.

    Parameters
    ----------
    data : bytes or ndarray of uint8 or None
        The program; None if it lies in a file.
    most, most_names : int
        The most tensors that the program may make, and bytes of their names.
    fd, begin, size : int
        The open file, which is read as long as this object is used; the offset of the program in it, and its most
        bytes.
    lax : bool
        Leave out objects that are neither tensors nor values, instead of reporting a fault.

    Attributes
    ----------
    end : int
        The end of the program in the data.
    fault : Fault or None
        The defect, if any; the other attributes are then meaningless.
    """

    __slots__ = ("_arena", "_buffers", "_limits", "_native", "_source", "fault")

    def __init__(
        self,
        data: bytes | NDArray[np.uint8] | None,
        max_tensors: int,
        max_names: int,
        *,
        fd: int = -1,
        begin: int = 0,
        size: int = 0,
        lax: bool = False,
    ) -> None:
        """Run the program, and count what it makes."""
        size = size if data is None else len(data)
        octets = NULL if data is None else from_buffer("uint8_t[]", data)
        self._buffers: Any = fd, octets  # kept alive for `_source`
        self._source: Any = ffi.new("wm_pickle_source *", (fd, octets, begin, size, lax))
        # A key may be part of many names: the length of the program bounds their total, too.
        self._limits = max_tensors, min(max_names, _NAMES * size + _MIN_NAMES, U32_MAX)
        words = _WORDS * size + size // _PAGE + _MIN_WORDS
        # Large memory comes as pages, of which the program touches only a part.
        large = 8 * words > _MAX_MALLOC
        self._arena: Any = from_buffer("uint64_t[]", _pages(8 * words)) if large else _new_words("uint64_t[]", words)
        self._native = ffi.new("wm_pickle *")
        fault = ffi.new("wm_fault *")
        failed = lib.wm_pickle_run(self._source, self._arena, words, self._native, fault)
        if not failed:
            arguments = (self._source, self._arena, *self._limits, NULL, NULL, NULL, self._native, fault)
            failed = lib.wm_pickle_walk(*arguments)
        self.fault: access.Fault | None = access.fault_of(fault) if failed else None

    @property
    def end(self) -> int:
        """The end of the program in the data."""
        return int(self._native.end)

    @property
    def n_values(self) -> int:
        """Number of values besides tensors."""
        return int(self._native.n_values)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return int(self._native.n_tensors)

    @property
    def n_retyped(self) -> int:
        """Number of tensors whose elements have another width than their storage's."""
        return int(self._native.n_retyped)

    @property
    def n_storages(self) -> int:
        """Number of times that the program mentions a storage."""
        return int(self._native.n_storages)

    def storages(self, prefix: bytes, per_batch: int) -> Iterator[PickleStorages | access.Fault]:
        """Yield the mentions of storages, `per_batch` at a time, named by `prefix` and their key; or a fault."""
        cursor, remaining = ffi.new("uint64_t *", self._native.storages), self.n_storages
        while remaining:
            count = min(per_batch, remaining)
            batch = PickleStorages(count)
            names = _new_words("uint8_t[]", count * (len(prefix) + lib.WM_PICKLE_KEY))
            filled = (_output(getattr(batch, name)) for name in ("bounds", "at", "nbytes", "item", "type"))
            columns = ffi.new("wm_pickle_storages *", (from_buffer("uint8_t[]", prefix), len(prefix), names, *filled))
            fault = ffi.new("wm_fault *")
            if lib.wm_pickle_list(self._source, self._arena, cursor, count, columns, fault):
                yield access.fault_of(fault)
                return
            batch.names = ffi.unpack(ffi.cast("char *", names), int(batch.bounds[-1]))
            yield batch
            remaining -= count

    def tensors(self, storages: NDArray[np.uint64]) -> tuple[Columns, NDArray[np.uint64] | None] | access.Fault:
        """Return the tensors, given the offsets of their storages, and the strides of tensors that are not row-major.

        The strides are in elements, as many as dimensions; None if all tensors are row-major.
        """
        native = self._native
        columns = Columns.scratch(native.names_len, native.n_tensors, native.n_dims)
        strides = transient(native.n_dims, np.uint64) if native.n_strided else None
        of_strides = NULL if strides is None else _output(strides)
        begins = access.as_items("uint64_t[]", storages)
        out = ffi.new("wm_pickle_tensors *", (columns.native, begins, of_strides))
        fault = self._walk(out, NULL)
        return (columns, strides) if fault is None else fault

    def values(self) -> PickleValues | access.Fault:
        """Return the values of the program besides tensors."""
        native = self._native
        values = PickleValues(native.n_values, native.value_names_len)
        parts = tuple(_output(getattr(values, name)) for name in ("names", "bounds", "kind", "length", "at"))
        out = ffi.new("wm_pickle_values *", (native.n_values, native.value_names_len, *parts))
        fault = self._walk(NULL, out)
        return values if fault is None else fault

    def _walk(self, tensors: Any, values: Any) -> access.Fault | None:
        path, fault = _new_words("uint8_t[]", self._native.longest + 1), ffi.new("wm_fault *")
        arguments = (self._source, self._arena, *self._limits, tensors, values, path, self._native, fault)
        return access.fault_of(fault) if lib.wm_pickle_walk(*arguments) else None


def _output(array: NDArray[Any]) -> Any:
    return access.as_output(array, _OF_DTYPE[array.dtype.str[1:]])


# ----------------------------------------------------------------------------------------------------
# The columns of a table of tensors, and tables of strings, which C fills, reads and checks.


class Columns:
    """The columns of a table of tensors, in private C memory.

    Indexing a C pointer takes a third of the time of indexing an array, and making no arrays keeps opening quick.

    Parameters
    ----------
    names : bytes or ndarray of uint8
    bounds, dim_bounds : ndarray of uint32, shape (n + 1,)
    dtype : ndarray of uint8, shape (n,)
    dims : ndarray of uint64
    begin : ndarray of uint64, shape (n,)
    end : ndarray of uint64, shape (n,), optional
        See wm_columns in kernels.h.

    Attributes
    ----------
    count, n_dims, names_len : int
        Numbers of tensors, of dimensions and of bytes of names.
    native : wm_columns
        Its pointers are also attributes of this object.
    """

    __slots__ = ("_memory", "count", "n_dims", "names_len", "native")

    def __init__(
        self,
        names: bytes | NDArray[np.uint8],
        bounds: Any,
        dtype: Any,
        dims: Any,
        dim_bounds: Any,
        begin: Any,
        end: Any = None,
    ) -> None:
        self.count: int = len(dtype)
        self.n_dims: int = len(dims)
        self.names_len: int = len(names)
        self._memory: Any = (
            from_buffer("uint8_t[]", names),
            access.as_items("uint32_t[]", bounds),
            from_buffer("uint8_t[]", dtype),
            access.as_items("uint64_t[]", dims),
            access.as_items("uint32_t[]", dim_bounds),
            access.as_items("uint64_t[]", begin),
            NULL if end is None else access.as_items("uint64_t[]", end),
            access.as_output(np.empty(self.count, np.uint32), "uint32_t[]"),
        )
        self.native: Any = ffi.new("wm_columns *", (self.count, self.n_dims, self.names_len, *self._memory))

    @classmethod
    def scratch(cls, size: int, count: int, n_dims: int) -> Columns:
        """Return columns for a scan to fill: names of `size` bytes, `count` tensors, `n_dims` dimensions."""
        self = cls.__new__(cls)
        self.count, self.n_dims, self.names_len = count, n_dims, size
        # One allocation for all columns; a scan touches only the pages that it fills.
        words = n_dims + 3 * count + (size + 5 * count) // 8 + 2
        self._memory = memory = _new_words("uint64_t[]", words)
        self.native = ffi.new("wm_columns *", (count, n_dims, size))
        if lib.wm_columns_place(self.native, memory, words):
            raise MemoryError(f"no memory for a table of {8 * words} bytes")
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def array(self, column: Any, count: int, dtype: str) -> NDArray[Any]:
        """Return a copy of `count` values of a column."""
        return np.frombuffer(ffi.buffer(column, count * int(dtype[-1])), dtype).copy()

    def words(self, column: Any, count: int) -> memoryview[int]:
        """Return a copy of `count` values of a column of 32 bits, without numpy."""
        return memoryview(bytes(ffi.buffer(column, 4 * count))).cast("I")

    def text(self) -> bytes:
        """Return the names back to back."""
        return bytes(ffi.buffer(self.names, self.names_len))

    def name(self, i: int) -> bytes:
        """Return the name of row i."""
        begin = self.bounds[i]
        return bytes(ffi.buffer(self.names + begin, self.bounds[i + 1] - begin))

    def order(self) -> NDArray[np.intp]:
        """Return the numbers of the rows in the order of their data."""
        n = self.count
        return np.lexsort((self.array(self.end, n, "<u8"), self.array(self.begin, n, "<u8")))

    def take(self, order: NDArray[np.intp], names: Sequence[bytes] | None = None) -> Columns:
        """Return new columns of the rows `order`, in that order, with new `names` if given."""
        n = self.count
        dims, dim_bounds = _runs(
            self.array(self.dims, self.n_dims, "<u8"), self.array(self.dim_bounds, n + 1, "<u4"), order
        )
        if names is None:
            old = np.frombuffer(self.text(), np.uint8)
            octets, bounds = _runs(old, self.array(self.bounds, n + 1, "<u4"), order)
            text = octets.tobytes()
        else:
            text, bounds = b"".join(names), np.cumsum([0, *map(len, names)], dtype=np.uint32)
        begin = self.array(self.begin, n, "<u8")[order]
        end = self.array(self.end, n, "<u8")[order] if self.end else None
        return Columns(text, bounds, self.array(self.dtype, n, "u1")[order], dims, dim_bounds, begin, end)

    def with_shapes(self, shapes: Mapping[int, Sequence[int]]) -> Columns:
        """Return new columns with other shapes for the rows of these numbers."""
        n = self.count
        text, dims = self.text(), self.array(self.dims, self.n_dims, "<u8")
        bounds, dim_bounds = (self.array(column, n + 1, "<u4") for column in (self.bounds, self.dim_bounds))
        begin, end = (self.array(column, n, "<u8") for column in (self.begin, self.end))
        each = np.split(dims, dim_bounds[1:-1])
        for row, shape in shapes.items():
            each[row] = np.array(shape, np.uint64)
        dim_bounds = np.cumsum([0, *map(len, each)], dtype=np.uint32)
        return Columns(text, bounds, self.array(self.dtype, n, "u1"), np.concatenate(each), dim_bounds, begin, end)

    def content(self) -> tuple[bytes, ...]:
        """Return the content of all columns, for comparison."""
        n = self.count
        columns = (
            *((self.bounds, n + 1, "<u4"), (self.dtype, n, "u1"), (self.dims, self.n_dims, "<u8")),
            *((self.dim_bounds, n + 1, "<u4"), (self.begin, n, "<u8"), (self.end, n, "<u8")),
        )
        return self.text(), *(self.array(*column).tobytes() for column in columns)

    def find(self, name: bytes) -> int:
        """Return the row of the tensor called `name`, or -1, by one pass."""
        row: int = lib.wm_columns_find(self.native, self.count, self.names_len, name, len(name))
        return row

    def check(self, rules: Any, data_size: int, room: int, *, lax: bool, utf8: bool) -> access.Fault | None:
        """Check every row by a wm_rules, and the names; return the first fault, or None."""
        arguments = (self.native, self.count, self.n_dims, self.names_len, utf8, rules, data_size, room, lax)
        # A valid table allocates no wm_fault.
        if lib.wm_columns_check(*arguments, NULL) == 0:
            return None
        fault = ffi.new("wm_fault *")
        lib.wm_columns_check(*arguments, fault)
        return access.fault_of(fault)


def row_rules(rules: Any) -> Any:
    """Return a wm_rules from an object with its fields."""
    return ffi.new("wm_rules *", (rules.min_ndim, rules.max_ndim, rules.alignment, rules.max_gap, rules.bits))


class Rows:
    """The rows of a table, each checked by C: see wm_row_check in csrc/core/scans.h.

    Parameters
    ----------
    rules : Rules
    count : int
    columns : Columns or None
    records : buffer
        Without columns: the index of an EMBD file.
    """

    __slots__ = ("_columns", "_keep", "_native")

    def __init__(self, rules: Any, count: int, columns: Columns | None, records: access.Buffer = b"") -> None:
        native, n_dims = (NULL, 0) if columns is None else (columns.native, columns.n_dims)
        buffer = access.as_input(records) if columns is None else NULL
        values = rules.native, native, buffer, count, n_dims, rules.base, rules.declared, rules.room
        self._columns = columns
        self._keep = rules.dtypes, rules.native, columns, buffer
        self._native = ffi.new("wm_table *", values)

    def row(self, i: int) -> tuple[int, tuple[int, ...], int, int] | access.Fault:
        """Return dtype code, shape, offset in the file and bytes of row i; or its fault."""
        row = ffi.new("wm_row *")
        if lib.wm_row_check(self._native, i, row, NULL):
            fault = ffi.new("wm_fault *")
            if lib.wm_row_check(self._native, i, row, fault):
                return access.fault_of(fault)
        return row.dtype, tuple(row.dims[0 : row.ndim]), self._native.base + row.offset, row.nbytes

    def batch(self, first: int, last: int) -> tuple[NDArray[Any], ...] | access.Fault:
        """Return dtype codes, ndims, dims (padded with 0), offsets and bytes of rows first to last - 1; or a fault."""
        count, fault, width = last - first, ffi.new("wm_fault *"), lib.WM_RECORD_DIMS
        if self._columns is not None:
            bounds = self._columns.array(self._columns.dim_bounds + first, count + 1, "<u4")
            width = int(np.diff(bounds).max(initial=0))
        codes, ndims = np.empty((2, count), np.uint8)
        dims, (offsets, sizes) = np.empty((count, width), np.uint64), np.empty((2, count), np.uint64)
        begin, nbytes = map(from_buffer, ("uint64_t[]",) * 2, (offsets, sizes))
        dtype, ndim = map(from_buffer, ("uint8_t[]",) * 2, (codes, ndims))
        out = ffi.new("wm_rows *", (dtype, ndim, from_buffer("uint64_t[]", dims), width, begin, nbytes))
        if lib.wm_rows_check(self._native, first, count, out, fault):
            return access.fault_of(fault)
        return codes, ndims, dims, offsets, sizes

    def placer(self) -> Callable[[int], Any]:
        """Return a function like `Table.place` that returns None for a row that needs Python."""
        return module.placer(int(ffi.cast("uintptr_t", self._native)), self._keep)


def _runs(values: NDArray[Any], bounds: NDArray[np.uint32], order: Any) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return the runs values[bounds[i]:bounds[i + 1]] in the given order, and their bounds."""
    lengths = np.diff(bounds)[order].astype(np.int64)
    new = np.zeros(len(order) + 1, bounds.dtype)
    np.cumsum(lengths, out=new[1:])
    # Position k of the result lies in run r, k - new[r] after that run's old start.
    source = np.repeat(bounds[:-1][order].astype(np.int64) - new[:-1], lengths) + np.arange(int(new[-1]))
    return values[source], new


def walk_strings(data: access.Buffer, count: int, width: int, bounds: NDArray[np.uint32] | None = None) -> int:
    """Walk `count` strings after lengths of `width` bytes; return the bytes walked, or -1 - i if string i does not fit.

    Fills `bounds`, shape (count + 1,), as kernels.h says.
    """
    buffer = access.as_input(data)
    out = NULL if bounds is None else access.as_output(bounds, "uint32_t[]")
    walked: int = lib.wm_walk_strings(buffer, len(buffer), count, width, out)
    return walked


def skip_strings(data: access.Buffer, count: int, tail: int) -> tuple[int, int]:
    """Walk up to `count` entries that lie whole in `data`: a u32 length, that many bytes, and `tail` more bytes.

    Returns the bytes and the number of the entries walked.
    """
    buffer = access.as_input(data)
    walked = ffi.new("uint64_t *")
    size: int = lib.wm_finalfusion_skip(buffer, len(buffer), count, tail, walked)
    return size, walked[0]


def walk_indexed(data: access.Buffer, count: int) -> tuple[int, NDArray[np.uint32], NDArray[np.uint64]]:
    """Walk `count` strings, each after a u32 length and before a u64 index.

    The caller checks that `count` is at most a twelfth of the bytes.

    Returns
    -------
    walked : int
        Bytes walked, or -1 - i if entry i does not fit.
    bounds : ndarray of uint32, shape (count + 1,)
        As for `weightmap.core.table.StringTable`, with gap 12.
    indices : ndarray of uint64, shape (count,)
    """
    buffer = access.as_input(data)
    bounds, indices = np.empty(count + 1, np.uint32), np.empty(count, np.uint64)
    starts, numbers = access.as_output(bounds, "uint32_t[]"), access.as_output(indices, "uint64_t[]")
    walked: int = lib.wm_finalfusion_ngrams(buffer, len(buffer), count, starts, numbers)
    return walked, bounds, indices


def utf8_strings(data: access.Buffer, bounds: NDArray[np.uint32], gap: int) -> int:
    """Return -1, or the number of the first string within `bounds` that is not strict UTF-8."""
    buffer = access.as_input(data)
    bad: int = lib.wm_utf8_strings(buffer, len(buffer), access.as_items("uint32_t[]", bounds), len(bounds) - 1, gap)
    return bad


def index_build(
    data: access.Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]
) -> tuple[int, int, int]:
    """Fill `slots` (a power of two of entries, at least 4/3 of the strings) with a hash index over the strings.

    Returns the number of strings that equal an earlier one, and the numbers of the first such string and its original;
    a count of -2 if too many hashes collide, as in an attack.
    """
    buffer, starts, table = (
        access.as_input(data),
        access.as_items("uint32_t[]", bounds),
        access.as_output(slots, "uint32_t[]"),
    )
    pair = ffi.new("uint64_t[2]")
    count = lib.wm_index_build(buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots), pair, pair + 1)
    return count, pair[0], pair[1]


def index_finder(
    data: access.Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]
) -> Callable[[object], int]:
    """Return a function that maps a text to the number of the equal string, or to -1; it keeps the arrays alive."""
    keep = (access.as_input(data), access.as_items("uint32_t[]", bounds), access.as_items("uint32_t[]", slots))
    buffer, starts, table = keep
    index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots)))
    return module.finder(int(ffi.cast("uintptr_t", index)), keep)


def index_find_many(
    data: access.Buffer,
    bounds: NDArray[np.uint32],
    gap: int,
    slots: NDArray[np.uint32],
    names: bytes,
    name_bounds: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Return the numbers of the strings equal to names[name_bounds[i]:name_bounds[i + 1]], -1 for a missing one."""
    buffer, starts, table = (
        access.as_input(data),
        access.as_items("uint32_t[]", bounds),
        access.as_items("uint32_t[]", slots),
    )
    spans, count = access.as_items("uint32_t[]", name_bounds), len(name_bounds) - 1
    rows = np.empty(count, np.int64)
    index = (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots))
    lib.wm_index_find_many(*index, names, len(names), spans, count, access.as_output(rows, "int64_t[]"))
    return rows


# ----------------------------------------------------------------------------------------------------
# Values of codes with scales for blocks, or for groups of columns, in parameters of quantised checkpoints.

# C's numbers for the types that these functions make.
CODED = {"float32": 0, "float16": 1, "bfloat16": 2}
_UNFIT = "codes, scales and output do not fit together"
_NO_MEMORY = -3


def look_up(
    codes: NDArray[Any],
    bits: int,
    values: NDArray[np.float32],
    scales: NDArray[np.float32],
    out: NDArray[Any],
    *,
    height: int,
    width: int,
    before: int = 0,
    zeros: NDArray[np.float32] | None = None,
    biases: NDArray[np.float32] | None = None,
    which: NDArray[np.uint8] | None = None,
    factor: float = 1,
    high_first: bool = False,
    threads: int = 1,
) -> None:
    """Fill an array with ``(values[code of row r, column c] - zeros[b]) * scales[b] * factor + biases[b]``.

    Operations are in float32; other types of `out` are rounded once more. The product of two NaNs is either of them.

    Parameters
    ----------
    codes : ndarray, shape (rows, bytes), C-contiguous
        End to end, lowest bits first. A row may have more bytes than its codes take.
    bits : int
        1 to 8.
    values : ndarray of float32, shape (2**bits,)
        The value of each code.
    scales, zeros, biases : ndarray of float32, C-contiguous
        One for each block, shape (ceil((before + rows) / height), ceil(columns / width)); or at most 256.
    out : ndarray of float32, float16 or bfloat16, shape (rows, columns), C-contiguous, writeable
    height, width : int
        Rows and columns of a block; blocks at the edges may be smaller.
    before : int
        Rows of the first blocks that precede row 0, fewer than `height`.
    which : ndarray of uint8, C-contiguous
        The number of each block's scale; by default scales are in the order of blocks.
    factor : float
        A float32 number.
    high_first : bool
        For 4 bits: whether the first of two codes in a byte is its high half.
    threads : int
        At most this many threads share the work.

    Raises
    ------
    ValueError
        When sizes do not fit together, or the memory overlaps.
    """
    rows, columns = out.shape
    per_block = [numbers for numbers in (zeros, biases) if numbers is not None]
    if len(codes) != rows or values.size != 1 << bits or any(numbers.size != scales.size for numbers in per_block):
        raise ValueError(_UNFIT)
    _checked(
        lib.wm_lookup(
            access.as_input(codes.reshape(-1).view(np.uint8)),
            codes.nbytes,
            bits,
            int(high_first),
            codes.nbytes // max(rows, 1),
            rows,
            columns,
            before,
            height,
            width,
            access.as_items("float[]", values),
            access.as_items("float[]", scales.reshape(-1)),
            NULL if zeros is None else access.as_items("float[]", zeros.reshape(-1)),
            NULL if biases is None else access.as_items("float[]", biases.reshape(-1)),
            scales.size,
            NULL if which is None else access.as_input(which.reshape(-1)),
            0 if which is None else which.size,
            factor,
            CODED[out.dtype.name],
            access.as_output(out.reshape(-1).view(np.uint8), "uint8_t[]"),
            out.nbytes,
            access.thread_count(threads),
        )
    )


def _checked(failed: int) -> None:
    if failed == _NO_MEMORY:
        raise MemoryError
    if failed:
        raise ValueError(_UNFIT if failed == -1 else "the output overlaps an input")


def decode_groups(
    words: NDArray[Any],
    bits: int,
    group: NDArray[np.uint32],
    scales: NDArray[np.float32],
    zeros: NDArray[np.float32],
    out: NDArray[Any],
    *,
    by_rows: bool = False,
    threads: int = 1,
) -> None:
    """Fill an array with ``scales[group[c], r] * (code of row r, column c - zeros[group[c], r])``.

    Operations are in float32; other types of `out` are rounded once more.

    Parameters
    ----------
    words : ndarray of int32, C-contiguous
        Little-endian. Shape (columns * bits / 32, rows), with the codes of a row end to end along the first axis,
        lowest bits first; or with `by_rows` shape (columns, rows / 8), with the codes of eight rows in AWQ's order.
    bits : int
        1 to 8; 4 with `by_rows`.
    group : ndarray of uint32, shape (columns,)
    scales, zeros : ndarray of float32, shape (groups, rows), C-contiguous
    out : ndarray of float32, float16 or bfloat16, shape (rows, columns), C-contiguous, writeable
    threads : int
        At most this many threads share the work.

    Raises
    ------
    ValueError
        When sizes do not fit together, a group has no scales, or the memory overlaps.
    """
    rows, columns = out.shape
    if scales.size != zeros.size or group.size != columns:
        raise ValueError(_UNFIT)
    failed = lib.wm_groups_decode(
        access.as_input(words.reshape(-1).view(np.uint8)),
        words.nbytes,
        bits,
        int(by_rows),
        access.as_items("uint32_t[]", group),
        columns,
        access.as_items("float[]", scales.reshape(-1)),
        access.as_items("float[]", zeros.reshape(-1)),
        scales.size,
        rows,
        CODED[out.dtype.name],
        access.as_output(out.reshape(-1).view(np.uint8), "uint8_t[]"),
        out.nbytes,
        access.thread_count(threads),
    )
    _checked(failed)
