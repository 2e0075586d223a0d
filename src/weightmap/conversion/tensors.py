"""Prepares the file that a conversion writes: its tensors, metadata and other parts, and notes on losses."""

from __future__ import annotations

import math
from array import array
from itertools import accumulate, chain, pairwise, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.checkpoints.weights import decoded_to
from weightmap.conversion.metadata import TYPES, fitted, typed
from weightmap.conversion.quantizer import Quantizer, Regrouper
from weightmap.core.arguments import entries
from weightmap.core.bytes import Range
from weightmap.core.bytes.source import BETWEEN, Source
from weightmap.core.dtypes import DTYPES, FLOATING, DType, numpy_dtype
from weightmap.core.formats import FORMATS, Filled, Format, Payload, Request, Tensors
from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import check_made, name_of, parts_of
from weightmap.core.model.opening import open_privately
from weightmap.core.model.saving import choose_layout, from_quantized, plan_request
from weightmap.core.model.sharded import disagreements
from weightmap.core.native.floats import in_type
from weightmap.core.quant.blocks import decode_chunks
from weightmap.core.quant.ggml import in_pieces
from weightmap.core.table.table import Row
from weightmap.errors import EncodeError, TensorFileError
from weightmap.llama.tensors import FILE_TYPES, stays_float32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.conversion.spec import Spec
    from weightmap.core.bytes.sink import Sink, WritePlan
    from weightmap.core.model.file import TensorFile
    from weightmap.huggingface.directory import ModelDirectory
    from weightmap.typing import TokenizerLike

# Names joined into one text: as separate objects, names take more than twice their length.
_NAMES_PER_TEXT = 4096


class Packed(Tensors):
    """Tensors of few kinds, in some 40 bytes per tensor.

    A tensor is its name, the number of its kind, and the offset of its data in the source. A payload with its row would
    take 400 bytes.

    Parameters
    ----------
    renamed : mapping of str to str
        The new name of each renamed tensor.

    Attributes
    ----------
    nbytes : int
        Bytes of the data of all tensors in the new file.
    """

    kinds: list[Payload]

    def __init__(self, renamed: Mapping[str, str]) -> None:
        super().__init__([])
        self._renamed = renamed
        self.distinct: bool = not renamed  # as in the source, whose index was checked
        self.nbytes = 0
        self._places: list[Row] = []
        self._texts: list[tuple[str, array[int]]] = []  # names joined into one text, and their ends
        self._last: list[str] = []  # names not joined yet
        self._payloads: list[Payload] | None = None  # all payloads, for few tensors in local files
        self._numbers, self._offsets = array("I"), array("Q")

    def add_kind(self, payload: Payload, place: Row) -> int:
        """Add a kind of tensors, with the payload and row of one of them; return its number."""
        self.kinds.append(payload)
        self._places.append(place)
        return len(self.kinds) - 1

    def extend(self, tensors: Iterable[tuple[str, int, int]]) -> None:
        """Append tensors by their names in the source, the numbers of their kinds, and their offsets."""
        last, self._payloads = self._last, None
        for name, kind, offset in tensors:
            last.append(name)
            if len(last) == _NAMES_PER_TEXT:
                self._texts.append(("".join(last), array("Q", accumulate(map(len, last)))))
                last.clear()
            self._numbers.append(kind)
            self._offsets.append(offset)
            self.nbytes += self.kinds[kind].nbytes

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Payload]:
        if self._payloads is not None:
            return iter(self._payloads)
        sources = self._reading_ahead()
        every = zip(self.origins(), self._numbers, self._offsets, strict=True)
        if self._texts or self._renamed or sources != [place.source for place in self._places]:
            return (self._payload(name, number, offset, sources) for name, number, offset in every)
        kinds, places = self.kinds, self._places
        self._payloads = [kinds[number].again(name, places[number]._replace(offset=at)) for name, number, at in every]
        return iter(self._payloads)

    def write(self, sink: Sink) -> None:
        """Append the bytes of all tensors; copy neighbours in a file together if they need no conversion."""
        sources = self._reading_ahead() if self._payloads is None else [place.source for place in self._places]
        copied = [
            kind.is_made_by(copy) and _in_file(place) for kind, place in zip(self.kinds, self._places, strict=True)
        ]
        pending, begin, end = None, 0, 0
        for name, number, offset in zip(self.origins(), self._numbers, self._offsets, strict=True):
            source = sources[number] if copied[number] else None
            if source is not pending or offset != end:
                if pending is not None:
                    sink.read(pending, begin, end - begin)
                begin = offset
            if source is None:
                self._payload(name, number, offset, sources).write(sink)
            pending, end = source, offset + self._places[number].nbytes
        if pending is not None:
            sink.read(pending, begin, end - begin)

    def _reading_ahead(self) -> list[Source]:
        """Return for each kind a source that reads the data of its tensors ahead."""
        files = {source for place in self._places for source, _, _ in place.reads()}
        ahead = {source: source.ahead(self._ranges(source), BETWEEN) for source in files}
        return [place.source.reading(ahead) for place in self._places]

    def _payload(self, name: str, number: int, offset: int, sources: Sequence[Source]) -> Payload:
        dtype, shape, _, _, nbytes, geometry, quantized = self._places[number]
        place = tuple.__new__(Row, (dtype, shape, sources[number], offset, nbytes, geometry, quantized))
        tensor = self.kinds[number].again(name, place)
        if self._renamed:
            tensor.name = self._renamed.get(name, name)
        return tensor

    def _ranges(self, file: Source) -> Iterator[Range]:
        """Yield the ranges of a file from which tensors are made, in order."""
        places = self._places
        for number, offset in zip(self._numbers, self._offsets, strict=True):
            place = places[number]
            for source, begin, end in place.source.reads(offset, offset + place.nbytes):
                if source is file:
                    yield Range(begin, end)

    def names(self) -> Iterator[str]:
        """Yield the names in the new file."""
        return (self._renamed.get(name, name) for name in self.origins()) if self._renamed else self.origins()

    def origins(self) -> Iterator[str]:
        """Yield the names in the source."""
        return chain(chain.from_iterable(starmap(_names_in, self._texts)), self._last)

    def arranged(self, rank: Callable[[Payload], Any]) -> Packed:
        """Return the tensors sorted by the rank of their kind, then by the bytes of their names."""
        names, numbers = list(self.origins()), self._numbers
        written = list(self.names()) if self._renamed else names
        # Strings sort by code points, as their UTF-8 sorts by bytes.
        order = sorted(range(len(names)), key=written.__getitem__)
        ranks = list(map(rank, self.kinds))
        if any(other != ranks[0] for other in ranks):
            order.sort(key=lambda i: ranks[numbers[i]])
        arranged = Packed(self._renamed)
        arranged.kinds, arranged._places = self.kinds, self._places
        arranged.extend((names[i], numbers[i], self._offsets[i]) for i in order)
        return arranged


def _names_in(text: str, ends: array[int]) -> list[str]:
    return [text[begin:end] for begin, end in pairwise(chain((0,), ends))]


def copy(sink: Sink, _: str, place: Row) -> None:
    """Append the bytes of a dense tensor."""
    if _in_file(place):
        sink.read(place.source, place.offset, place.nbytes)
    else:
        for chunk in place.chunks():
            sink.write(chunk)


def _in_file(place: Row) -> bool:
    """Whether a local file has these bytes unchanged. From a store, tensors are requested one by one."""
    return type(place.source) is Source and place.geometry is None and not place.dtype.swapped


def file_metadata(file: TensorFile) -> dict[str, Any]:
    """Return the part of a file's metadata that a conversion keeps."""
    metadata: dict[str, Any] = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    if not metadata:
        return metadata
    if file.layout == "sharded":
        for key in ("total_size", "total_parameters"):  # they describe the index, not the model
            metadata.pop(key, None)
    return typed(metadata)


def vocab_keys(file: TensorFile, part: str | None = None) -> set[str]:
    """Return the keys of the metadata that hold the tokens of a file's vocabulary, or this special id."""
    keys = FORMATS[file.format].vocab_keys if file.format in FORMATS else {}
    return {key for key, name in keys.items() if name == part}


def metadata_of(file: TensorFile, directory: ModelDirectory | None, target_format: Format) -> dict[str, Any]:
    """Return the metadata of a model's file and directory.

    A format that stores the whole configuration gets none of its numbers as metadata.
    """
    metadata = file_metadata(file)
    carried = target_format.carries[target_format.layouts[0]]
    if file.format != target_format.name and file.vocab is not None and "vocab" in carried:
        for key in vocab_keys(file):  # the vocabulary has these; keys of special ids stay, with their types
            metadata.pop(key, None)
    if directory is None:
        return metadata
    return metadata | (directory.about if "config" in carried else directory.metadata)


def pop_left_out(metadata: dict[str, Any], names: Iterable[str], takes: Callable[[str], bool]) -> list[str]:
    """Remove the metadata of modules whose tensors are all left out; return the keys.

    Keys are paths, as names of tensors are. `takes` decides on a key in a module without tensors; a key in no module
    stays.
    """
    modules: dict[str, bool] = {}  # whether a tensor of the module is included
    for name in names:
        included, module = takes(name), name
        while module := module.rpartition(".")[0]:
            modules[module] = modules.get(module, False) or included
    left_out = []
    for key in metadata:
        module = key.rpartition(".")[0]
        while module and module not in modules:
            module = module.rpartition(".")[0]
        if not (modules[module] if module else "." not in key or takes(key)):
            left_out.append(key)
    for key in left_out:
        del metadata[key]
    return left_out


def extras_of(
    file: TensorFile,
    directory: ModelDirectory | None,
    metadata: dict[str, Any],
    target_format: Format,
    layout: str,
    *,
    copies_vocab: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return metadata, vocabulary, configuration and tokenizer as in a `Request`, and notes on losses.

    `copies_vocab` says that the directory's vocabulary is not lost, because its files are copied beside the new file.
    """
    carried, title = target_format.carries[layout], target_format.title
    places = target_format.metadata_keys if "metadata" in carried else frozenset[str]()
    mistyped_keys, homeless = getattr(metadata, "odd", ()), list[str]()
    if metadata:
        metadata, homeless = fitted(metadata, places, target_format.metadata_kinds, target_format.metadata_most)
    foreign = target_format.own_keys & metadata.keys() if file.format != target_format.name else frozenset[str]()
    if foreign:
        metadata = {key: value for key, value in metadata.items() if key not in foreign}
    file_vocab, config, notes = file.vocab, file.config, list[str]()
    if config:  # the writer of AMB describes its own scheme
        config = {key: value for key, value in config.items() if key != "quant"}
    tokenizer: TokenizerLike | Mapping[str, Any] | None = file.tokenizer
    vocab: Sequence[str] | None = file_vocab
    special_ids = None if file_vocab is None else file_vocab.special_ids
    if directory is not None:
        if directory.vocab is not None:
            vocab, special_ids = directory.vocab, directory.special_ids
        if "config" in carried:
            config = {**(config or {}), **directory.config}
        if "tokenizer" in carried and (parts := directory.tokenizer()) is not None:
            tokenizer = {"type": parts.type, "special_ids": parts.special_ids, "payload": parts.payload}
            vocab = special_ids = None  # the tokenizer has them
            for name, i in parts.large_ids.items():
                config = {**(config or {}), f"{name}_token_id": i}
                notes.append(f"the special id {name} is {i}, more than 16 bits hold: it went to the configuration")
    available: dict[str, Any] = {
        "metadata": metadata if metadata or file.has_metadata else None,
        "vocab": vocab,
        "special_ids": special_ids
        and {name: i for name, i in special_ids.items() if name in target_format.special_ids},
        "config": config,
        "tokenizer": tokenizer,
    }
    extras = {name: value for name, value in available.items() if name in carried and value is not None}
    notes += (
        f"metadata {key!r} describes the layout of a file of {title}, and this model is not from one: left behind"
        for key in sorted(foreign)
    )
    if mistyped_keys:
        some = ", ".join(map(quoted, mistyped_keys))
        notes.append(f"{entries(len(mistyped_keys))} ({some}): not of the type that {TYPES!r} states, kept as stored")
    lost = []
    if homeless:
        lost.append(f"{entries(len(homeless))} ({', '.join(map(quoted, homeless))})")
    if config and "config" not in carried:
        lost.append("the configuration")
    if tokenizer is not None and "tokenizer" not in carried:
        lost.append("the tokenizer")
    if vocab is not None and not (vocab_keys(file) & metadata.keys() if vocab is file_vocab else copies_vocab):
        ids = (special_ids or {}).keys() - extras.get("special_ids", {}).keys()
        lost += _lost_of(vocab, carried, [name for name in ids if not vocab_keys(file, name) & metadata.keys()])
    expected = target_format.expected_keys.items() if file.format != target_format.name else ()
    notes += [f"metadata {key!r} is missing: {what}" for key, what in expected if key not in extras.get("metadata", ())]
    return extras, notes + [f"{title} has no place for {what}: left behind" for what in lost]


def _lost_of(vocab: Sequence[str], carried: frozenset[str], ids: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a vocabulary that a target loses; `ids` are the special ids that it does not hold."""
    if "vocab" not in carried:
        yield f"the vocabulary of {counted(len(vocab), 'token')}"
    elif ids:
        yield f"the special ids {', '.join(sorted(ids))}"
    subwords = getattr(vocab, "subwords", None)
    if subwords is not None and "subwords" not in carried:
        yield f"the {subwords.kind} subwords of {counted(subwords.size, 'row')}, vectors of unknown words"


def dropped_because(name: str, row: Row, format_: Format, layout: str) -> str | None:
    """Return why a layout without int64 does not need a tensor; None if it does, or holds int64."""
    is_buffer = name.rpartition(".")[2] == "position_ids" and len(row.shape) > 0
    if not is_buffer or "int64" in format_.dtypes[layout]:
        return None
    row.source.check_size(f"tensor {quoted(name)}", row.nbytes)
    if not _counts(row):
        return None
    return f"{format_.title} has no int64, and these are just the numbers 0 to {row.shape[-1] - 1}"


def _counts(row: Row) -> bool:
    """Whether each last axis of an int64 tensor counts 0, 1, 2 ..."""
    period, position = row.shape[-1], 0
    for chunk in row.source.chunks(row.offset, row.nbytes):
        values = np.frombuffer(chunk, "<i8")
        if not np.array_equal(values, np.arange(position, position + len(values)) % period):
            return False
        position += len(values)
    return True


# Elements of a quantised tensor to decode at once.
_DECODED_AT_ONCE = 1 << 18


class Overflow:
    """The values that one file's conversion to another type makes infinite or NaN, by tensor."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    @property
    def total(self) -> tuple[int, int]:
        """The number of such values, and of tensors with some."""
        return sum(self._counts.values()), len(self._counts)

    def cast(
        self,
        name: str,
        pieces: Iterable[NDArray[Any]],
        stored: Callable[[], Iterable[NDArray[Any]]],
        dtype: DType,
    ) -> Iterator[memoryview]:
        """Yield the bytes of a tensor, given in pieces of any type, as `dtype`.

        `stored` returns the pieces before any rounding, to find values that are already infinite or NaN there.
        """
        import ml_dtypes  # noqa: PLC0415 - 5 ms, for conversions to another type alone

        target, infinite = numpy_dtype(dtype), 0
        # Floating-point numbers are a sign bit and a magnitude; infinity and NaN have the largest magnitudes. As signed
        # integers, positive ones are therefore above the `largest` number, and as unsigned integers, negative ones are
        # above `lowest`. Integers compare faster than the types of ml_dtypes.
        unsigned, signed = f"u{target.itemsize}", f"i{target.itemsize}"
        limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
        largest, lowest = (int(np.array(end, target).view(unsigned)) for end in (limit, -limit))
        for values in pieces:
            cast = in_type(values, target)
            if cast.size and (cast.view(signed).max() > largest or cast.view(unsigned).max() > lowest):
                infinite += _count_infinite(cast)
            yield memoryview(cast.view(np.uint8))
        self._counts.pop(name, None)
        if infinite and (became := infinite - sum(map(_count_infinite, stored()))):
            self._counts[name] = became


def _count_infinite(values: NDArray[Any]) -> int:
    return int(np.count_nonzero(~np.isfinite(in_type(values, np.dtype(np.float64)))))


def overflow_note(values: int, tensors: int, dtype: str | None) -> list[str]:
    """Return a line about values that a conversion to this type made infinite or NaN, if there are any."""
    if not values or dtype is None:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        infinity = np.array(np.inf).astype(numpy_dtype(DTYPES[dtype]))
    became = "infinite" if np.isinf(infinity) else "NaN"
    what = f"{counted(values, 'value')} of {counted(tensors, 'tensor')}"
    are, they = ("is", "it") if values == 1 else ("are", "they")
    return [f"{what} {are} out of the range of {dtype}: {they} became {became}"]


class Prepared(NamedTuple):
    """A file that is ready to be written.

    Attributes
    ----------
    plan : WritePlan
    layout : str
    tensors : Packed
    dropped : list of (str, str)
        Name of each tensor that is left out, and the reason.
    warnings : list of str
        Losses besides tensors.
    """

    plan: WritePlan
    layout: str
    tensors: Packed
    dropped: list[tuple[str, str]]
    warnings: list[str]


class Preparer:
    """Prepares the files of a new model, and notes what their tensors lose.

    Parameters
    ----------
    spec : Spec
    trial : bool
        Read no data: sizes are estimates, and what is prepared must not be written.

    Attributes
    ----------
    overflow : Overflow
    quantizer : Quantizer or None
    """

    def __init__(self, spec: Spec, *, trial: bool = False) -> None:
        self._spec, self._format, self._trial = spec, spec.target_format, trial
        self.overflow: Overflow = Overflow()
        how = spec.quantize
        self.quantizer: Quantizer | None = None if how is None else Quantizer(how, spec.threads, spec.shape)
        layout = choose_layout(self._format, spec.output.layout, None)
        self._schemes = self._format.schemes.get(layout, frozenset[str]())
        self._dtype = None if spec.dtype is None else DTYPES[spec.dtype]
        self._regrouper = Regrouper(self._schemes, trial=trial)

    @property
    def notes(self) -> list[str]:
        """Lines about tensors whose scheme differs from the requested one, or from their former one."""
        return self._regrouper.notes + ([] if self.quantizer is None else self.quantizer.notes)

    def prepare(
        self,
        file: TensorFile,
        places: Iterable[tuple[str, Row]],
        directory: ModelDirectory | None,
        target: str,
        renamed: Mapping[str, str],
        *,
        part: bool = False,
        numbers: tuple[int, int, int] | None = None,
    ) -> Prepared:
        """Prepare a new file of some tensors of a model, with configuration and vocabulary of its directory.

        Raises the errors that the conversion raises before it creates a file. `renamed` has the new names of tensors.
        A `part` of a model loses the metadata that number it; `numbers` are the `part` of its `Request`.
        """
        spec, target_format = self._spec, self._format
        metadata = metadata_of(file, directory, target_format)
        for key, value in target_format.usual_metadata.items() if spec.configured else ():
            metadata.setdefault(key, value)
        kind = (spec.dtype if spec.quantize is None else spec.quantize.scheme) or ""
        if kind in FILE_TYPES and "general.file_type" in metadata:
            metadata["general.file_type"] = np.uint32(FILE_TYPES[kind])
        left_out = []
        nested = file.format in FORMATS and FORMATS[file.format].nested  # shards may be of several formats
        if nested and not (spec.include is None and not spec.exclude):
            left_out = pop_left_out(metadata, file, spec.takes)
        file_part = parts_of(file)[1].part
        if part and file_part is not None:
            for key in file_part.keys & metadata.keys():
                del metadata[key]
        try:
            layout = choose_layout(target_format, spec.output.layout, metadata)
        except TensorFileError as error:
            raise error.located(path=target, format=target_format.name) from None
        try:
            packed, dropped = self._packed(places, layout, renamed)
            check_total(file, spec, packed.nbytes)
        except TensorFileError as error:
            raise error.located(path=name_of(file)) from None
        extras, warnings = extras_of(file, directory, metadata, target_format, layout, copies_vocab=part)
        if left_out:
            keys = ", ".join(map(quoted, left_out[:5])) + ", ..." * (len(left_out) > 5)
            warnings.append(f"{entries(len(left_out))} of modules that are left out ({keys}): left behind")
        if file.shards:
            warnings += [f"{what}: left behind" for what in disagreements(file, file.metadata)]
        tensors: Tensors = packed
        if target_format.embeddings is not None and file.format != target_format.name:
            tensors, named = _as_embeddings(packed, *target_format.embeddings)
            warnings += named
        output = spec.output
        extras |= {"checksums": output.checksums, "align": output.alignment}
        request = Request(tensors, layout, **extras, part=numbers)
        try:
            plan = plan_request(target, target_format, request)
        except EncodeError as error:
            if error.remedy is not None and error.remedy.option == "dtype" and not spec.weights:
                check_computable(file, spec.takes, "another dtype")  # which the error would suggest in vain
            raise
        return Prepared(plan, layout, packed, dropped, warnings)

    def _packed(
        self, places: Iterable[tuple[str, Row]], layout: str, renamed: Mapping[str, str]
    ) -> tuple[Packed, list[tuple[str, str]]]:
        """Return the tensors to write, and name and reason for each tensor left out."""
        spec, target_format, quantizer = self._spec, self._format, self.quantizer
        all_included = spec.include is None and not spec.exclude
        packed, dropped, tensors = Packed(renamed), [], list[tuple[str, int, int]]()
        number_of_kind: dict[Any, int] = {}
        for name, place in places:
            if not (all_included or spec.takes(name)):
                continue
            dtype, shape, source, offset, nbytes, _, _ = place
            if dtype.name == "int64" and (why := dropped_because(name, place, target_format, layout)) is not None:
                dropped.append((name, why))
                continue
            scheme = None if quantizer is None else quantizer.wants(name, place)
            keeps_type = spec.translated and stays_float32(name, shape)
            # Dense tensors of one shape share a payload: making a payload takes as long as copying a small tensor.
            key: Any = (scheme, keeps_type, source, dtype, shape, nbytes)
            number = None if dtype.quantized else number_of_kind.get(key)
            if number is None:
                if nbytes > source.size:
                    source.check_size(f"tensor {quoted(name)}", nbytes)
                payload = self._payload(name, place, quantizing=scheme is not None, keeps_type=keeps_type)
                if dtype.quantized:
                    key = (payload.kind, source, dtype, nbytes)
                    number = number_of_kind.get(key)
            if number is None:
                number = packed.add_kind(payload, place)
                if payload.dtype.name != "adaptive":  # its size depends on its values
                    number_of_kind[key] = number
            tensors.append((name, number, offset))
            if len(tensors) == _NAMES_PER_TEXT:
                packed.extend(tensors)
                tensors.clear()
        packed.extend(tensors)
        return packed, dropped

    def _payload(self, name: str, row: Row, *, quantizing: bool, keeps_type: bool) -> Payload:
        """Return the payload of a tensor, in its own type or the conversion's."""
        if self.quantizer is not None and quantizing:
            return self.quantizer.payload(name, row, self._schemes, trial=self._trial)
        dtype = None if keeps_type else self._dtype
        if row.dtype.quantized:
            if dtype is None or self.quantizer is not None:  # with a quantiser, quantised tensors stay unchanged
                return _as_quantized(name, row, self._regrouper)
            size = math.prod(row.shape)
            return Payload(name, dtype, row.shape, size * dtype.bits // 8, _decoded, name, row, dtype, self.overflow)
        if dtype is None or row.dtype.name not in FLOATING or row.dtype.name == dtype.name:
            stored = DTYPES.get(row.dtype.name, row.dtype) if row.dtype.swapped else row.dtype
            return Filled(name, stored, row.shape, row.nbytes, copy, name, row)
        nbytes = row.nbytes // (row.dtype.bits // 8) * (dtype.bits // 8)
        return Payload(name, dtype, row.shape, nbytes, _cast, name, row, dtype, self.overflow)


def check_total(file: TensorFile, spec: Spec, nbytes: int) -> None:
    """Raise `LimitError` if the bytes of tensors exceed the bytes that may be copied."""
    spec.opening.limits.check("max_copy_bytes", nbytes, "bytes of tensors to copy")
    check_made(file, "all tensors to copy", nbytes)


def unaligned(target: str, align: int) -> tuple[int, int]:
    """Return the number of tensors in a new file that do not begin at a multiple of `align`, and of all tensors."""
    with open_privately(target) as file:
        return sum(1 for info in file.infos() if info.offset % align), len(file)


def unaligned_note(odd: int, count: int, align: int) -> list[str]:
    """Return the note about tensors that could not be aligned."""
    return [f"{counted(odd, 'tensor')} of {count} could not be aligned to {align} bytes"] if odd else []


def _as_embeddings(tensors: Tensors, matrix: str, norms: str) -> tuple[Tensors, list[str]]:
    """Rename a model's only matrix as the format of embeddings requires; return the tensors, and a note about it."""
    payloads = list(tensors)
    others = [payload for payload in payloads if payload.name != norms]
    if len(others) != 1 or others[0].name == matrix or len(others[0].shape) != 2:
        return tensors, []
    name, others[0].name = others[0].name, matrix
    return Tensors(payloads), [f"tensor {quoted(name)} is written as {matrix!r}"]


def _as_quantized(name: str, row: Row, regrouper: Regrouper) -> Payload:
    """Return a quantised tensor unchanged, or in the target's blocks. Its bytes are read when written."""
    layout = row.layout()
    if layout is None:  # product quantisation
        model = from_quantized(name, row.decoder())
        return Payload(name, model.dtype, model.shape, model.nbytes, _parts, name, row, parts=model.parts)
    start, block_size, scale_type = layout
    if regrouper.wants(row.dtype.name):
        return regrouper.payload(name, row, block_size, scale_type)
    nbytes = row.nbytes - start
    chunks: tuple[Any, ...] = (_bytes_from, name, row, start)
    if row.dtype.name == "adaptive":  # its mask is unchecked so far
        chunks = (_checked_bytes, name, row)
    return Payload(name, row.dtype, row.shape, nbytes, *chunks, block_size=block_size, scale_type=scale_type)


def _bytes_from(_: str, place: Row, start: int) -> Iterator[Any]:
    """Return the bytes of a tensor from `start` on."""
    return place.source.chunks(place.offset + start, place.nbytes - start)


def _checked_bytes(_: str, place: Row) -> Iterator[Any]:
    yield place.decoder().payload


def _parts(name: str, place: Row) -> Iterator[Any]:
    yield from from_quantized(name, place.decoder()).chunks()


def _decoded(name: str, place: Row, dtype: DType, overflow: Overflow) -> Iterator[memoryview]:
    def decoded() -> Iterator[NDArray[Any]]:
        return (values for tensor in in_pieces(place) for values in decode_chunks(tensor, _DECODED_AT_ONCE))

    return overflow.cast(name, decoded(), decoded, dtype)


def _cast(name: str, place: Row, dtype: DType, overflow: Overflow) -> Iterator[memoryview]:
    return overflow.cast(name, _stored(decoded_to(place, dtype)), lambda: _stored(place), dtype)


def _stored(row: Row) -> Iterator[NDArray[Any]]:
    stored = numpy_dtype(row.dtype)
    for chunk in row.source.chunks(row.offset, row.nbytes):
        yield np.frombuffer(chunk, stored)
