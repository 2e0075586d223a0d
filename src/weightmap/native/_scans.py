"""Scans in C: from the bytes of a header to columns; records that are used where they lie, and pairs of strings."""

from __future__ import annotations

from operator import le
from typing import TYPE_CHECKING, Any

from weightmap.lazy import Record, np
from weightmap.native._native import NULL, U32_MAX, Fault, as_input, as_output, fault_of, ffi, from_buffer, lib
from weightmap.native._strings import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# Fewest bytes of a tensor in a JSON header: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]},
_JSON_ENTRY = 48
# Dimensions reserved per tensor; a header with more is scanned again, with room for as many as it can spell.
_DIMS = 4


def scan_json(header: bytes, dtypes: bytes, max_tensors: int) -> tuple[Columns, Any] | Fault:
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
    found : wm_safetensors
        See kernels.h.
    """
    size = len(header)
    count, n_dtypes = min(size // _JSON_ENTRY + 1, max_tensors), len(dtypes) // 16
    found = ffi.new("wm_safetensors *")
    columns = Columns.scratch(size, count, _DIMS * count)
    if lib.wm_safetensors_scan(header, size, dtypes, n_dtypes, columns.native, found, NULL):
        fault = ffi.new("wm_fault *")
        columns = Columns.scratch(size, count, size // 2 + 1)
        if lib.wm_safetensors_scan(header, size, dtypes, n_dtypes, columns.native, found, fault):
            return fault_of(fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found


def json_depth(text: bytes) -> int:
    """Return how deep the objects and arrays of a JSON text are nested.

    For invalid JSON, it is at least as deep as a parser goes before the error.
    """
    depth: int = lib.wm_json_depth(text, len(text))
    return depth


# Fewest bytes of a tensor in a bincode header: an empty name, dtype, no dimensions, start, end.
_BINCODE_ENTRY = 5


def scan_bincode(header: bytes | bytearray, layouts: int, max_tensors: int) -> tuple[Columns, Any, Fault | None]:
    """Turn the header of a BinTensors file into columns, and return its first fault.

    Parameters
    ----------
    header : bytes or bytearray
        With its padding.
    layouts : int
        1 the specification's, 2 the current one, 3 the first of them that fits.
    max_tensors : int
        More are a fault CAPACITY, at the offset of the next one.

    Returns
    -------
    columns : Columns
        In file order.
    found : wm_bintensors
        See kernels.h.
    fault : Fault or None
    """
    size = len(header)
    columns = Columns.scratch(size, min(size // _BINCODE_ENTRY + 1, max_tensors), size)
    found, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    data = header if type(header) is bytes else from_buffer("uint8_t[]", header)
    failed = lib.wm_bintensors_scan(data, size, layouts, columns.native, found, fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found, fault_of(fault) if failed else None


# Room for the name of a layer, and the size of its record, in bytes.
_LAYER_NAME, _LAYER_RECORD = 32, 20


def scan_layers(records: bytes) -> tuple[Columns, Any] | Fault:
    """Turn the layer records of a CNN v2 file into columns, or return their first fault.

    Parameters
    ----------
    records : bytes
        20 for each layer.

    Returns
    -------
    columns : Columns
        Offsets in bytes, relative to the weights.
    found : wm_cnn
        See kernels.h.
    """
    count = len(records) // _LAYER_RECORD
    columns = Columns.scratch(_LAYER_NAME * count, count, 4 * count)
    found, fault = ffi.new("wm_cnn *"), ffi.new("wm_fault *")
    failed = lib.wm_cnn_layers(records, len(records), count, columns.native, found, fault)
    if failed:
        return fault_of(fault)
    columns.names_len = found.names_len
    return columns, found


# Valid data allocates no wm_fault, which is a good part of a call's time. A failed check is repeated with one. If it
# then succeeds, because the file is being written to, the data counts as valid.
def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    if lib.wm_pairs_check(data, len(data), count, NULL) == 0:
        return None
    fault = ffi.new("wm_fault *")
    return fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8], count: int, rules: Any, data_size: int, room: int, *, lax: bool
) -> int | Fault:
    """Check `count` records of an index by a wm_rules, and the names behind them.

    Returns the bytes of the names, or the fault of a record or a name.
    """
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    asked = (data, len(data), count, rules, data_size, room, lax)
    used: int = lib.wm_records_check(*asked, NULL)
    if used < 0:
        fault = ffi.new("wm_fault *")
        used = lib.wm_records_check(*asked, fault)
    return fault_of(fault) if used < 0 else used


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record called `name`, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row


def records_bounds(index: bytes | NDArray[np.uint8], count: int) -> tuple[int, memoryview[int]]:
    """Return where the last name ends behind `count` records, and the bounds of all names, modulo 2**32."""
    bounds = ffi.new("uint32_t[]", count + 1)
    end: int = lib.wm_records_bounds(from_buffer("uint8_t[]", index), len(index), count, bounds)
    return end, memoryview(ffi.buffer(bounds)).cast("I")


# Room for bytes of names, tensors and dimensions. Most models fit; a larger one is scanned twice.
_ROOM = (16384, 512, 1024)
# Fewest bytes of a record and of a dimension.
_RECORD, _DIM = 12, 4


# Of data that is no `Reader`.
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
        self.fd = fd  # -1 if the file is `data`, an array or a Reader
        self.data = data
        self.begin = begin  # of the section in the file, like `end`
        self.end = end
        self.max_tensors = max_tensors
        self.max_names = max_names
        self.bare = bare  # block size and bytes of a scale for blocks without a header, or zeros


# The field of a fault, by the WM_AMB_ constants.
SECTION_FIELDS = (
    *("name_length", "name", "ndim", "shape", "dtype", "data_size"),
    *("quant_type", "block_size", "scale_type", "padding"),
)


def scan_section(section: Section, *, relative: bool, lax: bool) -> tuple[Columns, Any, Fault | None]:
    """Turn the records of a section into columns, and return their first fault.

    Parameters
    ----------
    section : Section
    relative : bool
        Whether padding counts from the beginning of the section instead of the file.
    lax : bool
        Whether padding that is missing or not zero is noted in `found` instead of a fault.

    Returns
    -------
    columns : Columns
        In file order; offsets relative to the section. Meaningless with a fault.
    found : wm_amb
        See kernels.h.
    fault : Fault or None
    """
    size = section.end - section.begin
    most = (size, size // _RECORD, size // _DIM)
    room = (min(_ROOM[0], most[0]), min(_ROOM[1], most[1], section.max_tensors), min(_ROOM[2], most[2]))
    columns, found, fault = _walk(section, room, relative=relative, lax=lax)
    needed = (found.names_len, found.n_tensors, found.n_dims)
    if fault is None and any(need > have for need, have in zip(needed, room, strict=True)):
        room = needed
        columns, found, fault = _walk(section, room, relative=relative, lax=lax)
        needed = (found.names_len, found.n_tensors, found.n_dims)
        if fault is None and any(need > have for need, have in zip(needed, room, strict=True)):
            # The file is being written to.
            fault = Fault(lib.WM_FAULT_AMB_READ, found.n_tensors, section.end, 0, 0)
    columns.names_len, columns.count, columns.n_dims = needed
    return columns, found, fault


def _walk(
    section: Section, room: tuple[int, int, int], *, relative: bool, lax: bool
) -> tuple[Columns, Any, Fault | None]:
    columns = Columns.scratch(*room)
    function, context = getattr(section.data, "hook", _NO_HOOK)
    data = None if function else section.data
    octets = NULL if data is None else from_buffer("uint8_t[]", data)
    # In the order of kernels.h.
    asked = ffi.new(
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
    found, fault = ffi.new("wm_amb *"), ffi.new("wm_fault *")
    failed = lib.wm_amb_walk(asked, columns.native, found, fault)
    if function:
        section.data.check()
    return columns, found, fault_of(fault) if failed else None


# The marks of a row of an ONNX model: see wm_onnx_scan in scans.h.
ONNX_MADE: int = lib.WM_ONNX_MADE
ONNX_EXTERNAL: int = lib.WM_ONNX_EXTERNAL
_ONNX_NESTED = 1 << lib.WM_ONNX_NESTED_BIT
# Room for bytes of names, tensors, dimensions, other files and bytes of metadata; a larger model is scanned twice.
_MODEL_ROOM = (16384, 512, 1024, 1, 4096)


class Initialisers(Record):
    """The initialisers of an ONNX model: see wm_onnx_scan in scans.h.

    Attributes
    ----------
    columns : Columns
    at : ndarray of uint64, shape (n,)
        Where each begins.
    nested : ndarray of bool, shape (n,)
        Whether it lies in a node, in a graph within another, in a function or in training_info.
    files : list of (int, int, int, int, int)
        Of those in other files: from which row on, where the name of the file lies, its bytes, and the same of a
        checksum.
    kept : bytes
        The fields of the model but its graph.
    found : wm_onnx
    """

    columns: Columns
    at: NDArray[np.uint64]
    nested: NDArray[np.bool_]
    files: list[tuple[int, int, int, int, int]]
    kept: bytes
    found: Any


def scan_model(
    source: tuple[int, Any], size: int, max_tensors: int, max_kept: int, *, lax: bool = False
) -> tuple[Initialisers, Fault | None]:
    """Find the initialisers of an ONNX model, and return its first fault.

    Parameters
    ----------
    source : (int, bytes-like or Reader)
        See `Source.scanned`.
    size : int
        Of the file.
    max_tensors, max_kept : int
        More are a fault: tensors, and bytes of names and of metadata.
    lax : bool
        List an initialiser that cannot be read, with the data_type 0, instead of a fault.
    """
    most = (max_kept, max_tensors, size, size, max_kept)
    room = tuple(map(min, _MODEL_ROOM, most))
    while True:
        model, fault = _scan_model(source, size, max_tensors, max_kept, room, lax=lax)
        found = model.found
        needed = (found.names_len, found.n_tensors, found.n_dims, found.n_files, found.kept_len)
        if fault is not None or all(map(le, needed, room)):
            model.columns.names_len, model.columns.count, model.columns.n_dims = needed[:3]
            at, kept = model.at[: needed[1]], model.kept[: needed[4]]
            return model.replaced(at=at & (_ONNX_NESTED - 1), nested=at >= _ONNX_NESTED, kept=kept), fault
        room = tuple(map(max, needed, room))  # more and more only while the file is being written to


def _scan_model(
    source: tuple[int, Any], size: int, max_tensors: int, max_kept: int, room: tuple[int, ...], *, lax: bool
) -> tuple[Initialisers, Fault | None]:
    fd, data = source
    names_room, tensors_room, dims_room, files_room, kept_room = room
    columns, at = Columns.scratch(names_room, tensors_room, dims_room), np.empty(tensors_room, np.uint64)
    function, context = getattr(data, "hook", _NO_HOOK)
    octets = NULL if function or data is None else from_buffer("uint8_t[]", data)
    files, kept = ffi.new("wm_onnx_place[]", files_room), bytearray(kept_room)
    limits = (min(max_tensors, U32_MAX), min(max_kept, U32_MAX - 1), max_kept)
    filled = (as_output(at, "uint64_t[]"), files, from_buffer("uint8_t[]", kept), files_room, kept_room)
    asked = ffi.new("wm_onnx_file *", (fd, octets, size, *limits, *filled, lax, function, context))
    found, fault = ffi.new("wm_onnx *"), ffi.new("wm_fault *")
    failed = lib.wm_onnx_scan(asked, columns.native, found, fault)
    if function:
        data.check()
    places = [(p.row, p.path, p.path_len, p.sum, p.sum_len) for p in files[0 : min(found.n_files, files_room)]]
    return Initialisers(columns, at, at >= _ONNX_NESTED, places, bytes(kept), found), fault_of(
        fault
    ) if failed else None


def make_numbers(data: bytes, field: int, bits: int, out: NDArray[np.uint8], count: int) -> Fault | None:
    """Make elements of `bits` bits of the numbers in these fields of a tensor of ONNX; return a fault or None."""
    fault = ffi.new("wm_fault *")
    failed = lib.wm_onnx_numbers(data, len(data), field, bits, count, as_output(out, "uint8_t[]"), fault)
    return fault_of(fault) if failed else None


# The fewest bytes of a key-value and of a tensor info, in any version.
GGUF_VALUE_LEAST, GGUF_TENSOR_LEAST = 9, 20
_GGUF_DIMS: int = lib.WM_GGUF_NDIM
GGUF_KEY_MOST: int = lib.WM_GGUF_KEY
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
        Whether tensors may have types that the caller does not know.

    Attributes
    ----------
    others : tuple of int
        The codes of such types, once `tensors` found them; the first one's dtype is `GGUF_TYPES`.
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

    def values(self, data: bytes | bytearray) -> Fault | bool:
        """Scan on through the key-values: return True at their end, False if that takes more data, or a fault."""
        native = self.native
        room = min(native.count, len(data) // GGUF_VALUE_LEAST + 1)
        if room > self._room:
            keys = ffi.new("uint32_t[]", 2 * room)
            ffi.memmove(keys, self._keys, 8 * native.n_keys)
            self._keys, self._room = keys, room
        fault = ffi.new("wm_fault *")
        state = lib.wm_gguf_values(from_buffer("uint8_t[]", data), len(data), self._keys, room, native, fault)
        return fault_of(fault) if state < 0 else state == 0

    def tensors(self, data: bytes | bytearray, types: Any, most: int) -> tuple[Columns, Fault | bool]:
        """Scan tensor infos; return columns, and a state as `values` does. A row past `most` is a fault CAPACITY."""
        native = self.native
        left = len(data) - native.pos
        count = min(native.n_tensors, left // GGUF_TENSOR_LEAST + 1, most)
        columns = Columns.scratch(left, count, _GGUF_DIMS * count)
        fault = ffi.new("wm_fault *")
        octets = from_buffer("uint8_t[]", data)
        state = lib.wm_gguf_tensors(octets, len(data), types, columns.native, native, fault)
        columns.n_dims, columns.names_len = native.n_dims, native.names_len
        if native.n_others:
            self.others = tuple(native.others[0 : native.n_others])
        return columns, fault_of(fault) if state < 0 else state == 0

    def reach(self, columns: Columns, room: int) -> None:
        """Let tensors of such types, in the order of their data, reach to the next one or to `room`."""
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
        native, octets = self.native, as_input(data)
        out = as_output(bounds, "uint32_t[]")
        end = lib.wm_gguf_strings(octets, len(octets), count, native.version, native.big, out)
        return bounds, end
