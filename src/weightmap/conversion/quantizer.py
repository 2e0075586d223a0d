"""Quantises tensors in a conversion, and measures the error; regroups quantised tensors into the target's blocks."""

from __future__ import annotations

import functools
import math
import os
import re
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weightmap._messages import counted
from weightmap.core.arguments import Globs, as_float, as_globs, as_integer, matches
from weightmap.core.bytes.memory import scratch
from weightmap.core.dtypes import FLOATING, GGML_SCHEMES, SCHEMES, numpy_dtype, scale_type_named
from weightmap.core.formats import Filled, Payload, listed
from weightmap.core.model.reports import QuantizedInfo
from weightmap.core.native import quantised
from weightmap.core.native.access import Failed, cpus
from weightmap.core.native.files import COMPARED
from weightmap.core.native.quantised import BlockEncoder, Unwritten
from weightmap.core.quant.blocks import QuantizedTensor, decode_range
from weightmap.core.quant.ggml import COUNTERPARTS, GGML_BLOCK, check_counterpart, in_pieces, regroup
from weightmap.core.quant.quantizing import folded, is_out_of_range, largest_scale, quantize, scheme_named
from weightmap.core.quant.schemes import BITS, BLOCKED
from weightmap.errors import QuantError
from weightmap.llama.tensors import MIXTURES, Shape, stays_float32, type_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from weightmap.core.bytes.sink import Sink
    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

# Elements to quantise at once: as float32, they fill half of the second-level cache of common CPUs.
_PIECE = 1 << 17
# The relative error that means that blocks of GGUF have lost their values: types of 2 bits have at most 0.4.
_LOST = 0.5
# Elements to encode together under one scale; their codes fill whole bytes.
_TOGETHER = 256
# Most cached bytes of adaptive tensors, which planning quantises for their sizes. Further tensors are quantised again
# when written, so that memory stays flat.
_MAX_CACHED_BYTES = 64 << 20
# Parts of the names of embeddings in models of Hugging Face and of llama.cpp.
_EMBEDDINGS = re.compile("embed|embd", re.IGNORECASE)
# llama.cpp's replacements for tensors whose rows are not whole blocks of 256.
_FALLBACKS = {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}


@dataclass(frozen=True, slots=True)
class Quantize:
    """How `convert` quantises tensors. For a scheme with its defaults, pass its name: ``quantize="q4_0"``.

    Parameters
    ----------
    scheme : str
        A scheme of `weightmap.quantize`, or a mixture of llama.cpp, for models under its names in GGUF: "q3_k_s",
        "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m".
    block_size : int
        Elements per block, for int4_block, int5_block and adaptive.
    scale_type : str or numpy.dtype
        "fp16" or "fp32", by any of their names.
    bits : float
        For adaptive: bits per weight, 4.5 to 16. Its working memory, about 8 bytes for each element of a tensor, lies
        in a temporary file (in ``TMPDIR``) beyond 16 MiB.
    include, exclude : glob or sequence of globs, optional
        Quantise floating-point tensors whose name matches an `include` and no `exclude`, whatever their shape; without
        `include`, tensors of two dimensions or more that are not embeddings (by their names). A glob that matches no
        tensor of the model is an EncodeError.

    Raises
    ------
    QuantError
        For an unknown scheme, and for a block size, scale type or bits that the scheme does not allow.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"up": np.ones((4, 64), np.float32), "norm": np.ones((4, 64), np.float32)})
    >>> how = wm.Quantize("int4_block", block_size=64, exclude="*norm*")
    >>> wm.convert("model.safetensors", "model.amb", quantize=how).quantized[0].scheme
    'int4_block'
    """

    scheme: str
    _: KW_ONLY
    block_size: int = 32
    scale_type: str = "fp16"
    bits: float = 5.0
    include: Globs = None
    exclude: Globs = None

    def __post_init__(self) -> None:
        """Check the values, and normalise names."""
        name = folded(self.scheme)
        normalised = {
            "scheme": name if name in MIXTURES else scheme_named(self.scheme),
            "block_size": as_integer("block_size", self.block_size),
            "scale_type": scale_type_named(self.scale_type),
            "bits": as_float("bits", self.bits),
            "include": as_globs("include", self.include),
            "exclude": as_globs("exclude", self.exclude),
        }
        for name, value in normalised.items():
            object.__setattr__(self, name, value)
        scheme = self.usual
        if scheme not in (*BLOCKED, "adaptive") and self.block_size != 32:
            kind = "blocks of one size" if scheme in GGML_SCHEMES else "no blocks"
            raise QuantError(f"block_size is for {', '.join(BLOCKED)} and adaptive: {scheme} has {kind}")
        if scheme != "adaptive" and self.bits != 5:
            raise QuantError(f"bits is for adaptive: {scheme} has a fixed number of bits")
        if scheme != "pq":
            if scheme not in GGML_SCHEMES or self.scale_type != "fp16":  # ggml's schemes have scales of one type
                _quantize_zeros(self)
        elif self.include is not None or self.exclude is not None:
            raise QuantError("pq is for word embeddings: Pq(include=...) of weightmap.words.convert chooses a matrix")

    @property
    def elements(self) -> int:
        """Elements of a block; 0 for a scheme with one scale for all."""
        if self.usual in GGML_SCHEMES:
            return quantised.GGML_TYPES[self.usual].block_size
        return self.block_size if self.usual in (*BLOCKED, "adaptive") else 0

    @property
    def mixture(self) -> str | None:
        """The scheme if it is a mixture, else None."""
        return self.scheme if self.scheme in MIXTURES else None

    @property
    def usual(self) -> str:
        """The scheme; for a mixture, the scheme of most tensors."""
        return MIXTURES.get(self.scheme, self.scheme)


def _quantize_zeros(how: Quantize) -> None:
    """Quantise a row of zeros, which raises `QuantError` for options that do not fit the scheme."""
    row = quantised.GGML_TYPES[how.usual].block_size if how.usual in GGML_SCHEMES else 1
    quantize(np.zeros(row, np.float32), how.usual, **quantize_options(how), threads=1)


def quantize_options(how: Quantize) -> dict[str, Any]:
    """Return the options of `weightmap.quantize`."""
    return {"block_size": how.block_size, "scale_type": how.scale_type, "bits": how.bits}


def _nothing(_name: str, _place: Row) -> tuple[()]:
    """Return no bytes: a stand-in for a tensor that the writer will refuse."""
    return ()


class Regrouper:
    """Regroups quantised tensors into the blocks of a target, and reports them.

    Parameters
    ----------
    writable : collection of str
        The schemes of the target.
    trial : bool
        Read no scales: a tensor that they would exclude is then taken for one that can be regrouped.
    """

    def __init__(self, writable: Collection[str], *, trial: bool) -> None:
        self._writable, self._trial = writable, trial
        self._done: dict[str, int] = {}

    def wants(self, scheme: str) -> bool:
        """Whether the target lacks this scheme and has another one for the same integers and scales."""
        return scheme not in self._writable and COUNTERPARTS.get(scheme) in self._writable

    def payload(self, name: str, row: Row, block_size: int, scale_type: str) -> Payload:
        """Return the payload of a tensor in the target's scheme.

        If its blocks or scales do not allow this, the tensor keeps its scheme, which the writer refuses with the
        reason.
        """
        scheme, size = COUNTERPARTS[row.dtype.name], math.prod(row.shape)
        try:
            check_counterpart(row.dtype.name, row.shape, block_size)
            # Here the scales decide: regroup once before making a file.
            if not self._trial and (scheme == "int8" or scale_type == "fp32"):
                for _ in _regrouped(name, row):
                    pass
        except QuantError as error:
            return Payload(name, row.dtype, row.shape, 0, _nothing, name, row, refused=str(error))
        self._done[row.dtype.name] = self._done.get(row.dtype.name, 0) + 1
        elements = GGML_BLOCK if scheme in BLOCKED else 0
        if scheme in BITS:
            nbytes = quantised.blocks_size(size, bits=BITS[scheme], block_size=elements, scale_type="fp16")
        else:
            nbytes = quantised.ggml_size(size, scheme)
        arguments = _regrouped, name, row
        return Payload(name, SCHEMES[scheme], row.shape, nbytes, *arguments, block_size=elements, scale_type="fp16")

    @property
    def notes(self) -> list[str]:
        """Lines about the tensors that got another scheme."""
        return [
            f"{counted(count, 'tensor')} of {scheme} became {COUNTERPARTS[scheme]}: "
            "the same integers and scales, nothing was decoded"
            for scheme, count in self._done.items()
        ]


def _regrouped(_: str, place: Row) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a tensor in the other scheme, piece by piece."""
    first, scale = 0, None
    for piece in in_pieces(place) if math.prod(place.shape) else [place.decoder()]:
        regrouped = regroup(piece, first=first, scale=scale)
        one_scale = regrouped.scheme == "int8"
        yield regrouped.payload[regrouped.scales.nbytes :] if one_scale and first else regrouped.payload
        first += piece.n_blocks
        scale = regrouped.scales if one_scale else None


class _Blocks(NamedTuple):
    """A scheme whose blocks are quantised one by one: elements and bytes per block, and the encoder.

    A block of integers begins with its scale; in a scheme with one scale for all, it has only codes.
    """

    elements: int
    nbytes: int
    encode: BlockEncoder
    has_scale: bool


class _Run(NamedTuple):
    """Elements of a tensor: their file, source, offset, and type; the number of the first element, and their count."""

    file: Source
    source: int | NDArray[np.uint8]
    begin: int
    dtype: str
    first: int
    size: int


class Quantizer:
    """The quantiser of a conversion, which records the error of each tensor.

    Parameters
    ----------
    how : Quantize
    threads : int, optional
        The most threads that share the work; by default one for each CPU that this process may use.
    shape : Shape, optional
        For a model under llama.cpp's names: tensors that llama.cpp needs in float32 stay float32, and a mixture chooses
        schemes by names.

    Attributes
    ----------
    done : list of QuantizedInfo
        The outcome of each tensor.
    """

    def __init__(self, how: Quantize, threads: int | None = None, shape: Shape | None = None) -> None:
        self.scheme: str = how.usual
        self._mixture, self._shape = how.mixture, shape
        self._options = {**quantize_options(how), "threads": cpus() if threads is None else threads}
        self._include, self._exclude = how.include, how.exclude
        self.done: list[QuantizedInfo] = []
        self._cached_nbytes = 0
        self._encoders: dict[str, _Blocks] = {}
        self._others: dict[str | None, list[str]] = {}  # tensors that get another scheme, by that scheme
        self.block_size: int = how.elements

    def wants(self, name: str, row: Row) -> str | None:
        """Return the scheme for a tensor; None if it stays as it is."""
        if row.dtype.quantized or row.dtype.name not in FLOATING or (self._exclude and matches(name, self._exclude)):
            return None
        if self._shape is not None and stays_float32(name, row.shape):
            return None
        if self._include is not None:
            selected = matches(name, self._include)
        else:
            is_embedding = self._mixture is None and _EMBEDDINGS.search(name) is not None
            selected = len(row.shape) >= 2 and not is_embedding
        if not selected:
            return None
        scheme = self.scheme_of(name, row.shape)
        if scheme != self._requested(name):
            self._others.setdefault(scheme, []).append(name)
        return scheme

    def _requested(self, name: str) -> str:
        """Return the requested scheme, by the mixture if there is one."""
        if self._mixture is None or self._shape is None:
            return self.scheme
        return type_in(self._mixture, name, self._shape)

    def scheme_of(self, name: str, shape: tuple[int, ...]) -> str | None:
        """Return the scheme for a tensor of this shape; None if no scheme's blocks fit its rows."""
        scheme: str | None = self._requested(name)
        while scheme in GGML_SCHEMES and (not shape or shape[-1] % quantised.GGML_TYPES[scheme].block_size):
            scheme = _FALLBACKS.get(scheme)
        return scheme

    @property
    def notes(self) -> list[str]:
        """Lines about tensors that did not get the requested scheme."""
        rows = f"rows are not a multiple of {self.block_size} elements"
        return [
            f"{counted(len(names), 'tensor')} {'stayed dense' if scheme is None else f'became {scheme}'} instead of "
            f"{self._mixture or self.scheme}, since {rows}: {listed(names)}"
            for scheme, names in self._others.items()
        ]

    def payload(self, name: str, place: Row, writable: Collection[str], *, trial: bool) -> Payload:
        """Return the payload of a tensor for a format that holds the schemes `writable`; writing it reads the tensor.

        If the size depends on the values, a `trial` estimates it.
        """
        shape, scale_type = place.shape, self._options["scale_type"]
        size = math.prod(shape)
        scheme = self.scheme_of(name, shape) or self.scheme
        if scheme not in writable:  # the writer will refuse it by its name
            return Payload(name, SCHEMES[scheme], shape, 0, _nothing, name, place)
        blocks, block_size, write = self._blocks(scheme), self.block_size, self._whole
        if blocks is not None:
            if scheme in BITS and scheme not in BLOCKED:
                fill = self._by_one_scale
                nbytes = quantised.blocks_size(size, bits=BITS[scheme], block_size=0, scale_type=scale_type)
            else:
                fill, block_size, nbytes = self._by_blocks, blocks.elements, -(-size // blocks.elements) * blocks.nbytes
            kind: dict[str, Any] = {"block_size": block_size, "scale_type": scale_type}
            return Filled(name, SCHEMES[scheme], shape, nbytes, fill, name, place, scheme, blocks, nbytes, **kind)
        if trial:
            nbytes = math.ceil(size * self._options["bits"] / 8)
        else:  # adaptive: the size depends on the kind of each block
            quantized = self._quantized(name, place)
            nbytes = len(quantized[0])
            if self._cached_nbytes + nbytes <= _MAX_CACHED_BYTES:
                self._cached_nbytes += nbytes
                write = functools.partial(self._whole, quantized=quantized)
        chunks = write, name, place, nbytes
        return Payload(name, SCHEMES[scheme], shape, nbytes, *chunks, block_size=block_size, scale_type=scale_type)

    def _blocks(self, scheme: str) -> _Blocks | None:
        """Return the encoder of a scheme; None for "adaptive", which chooses among all blocks of a tensor."""
        if scheme not in self._encoders:
            threads, scale_type = self._options["threads"], self._options["scale_type"]
            if scheme in GGML_SCHEMES:
                kind = quantised.GGML_TYPES[scheme]
                encoder = BlockEncoder(kind.number, threads=threads)
                nbytes = quantised.ggml_size(kind.block_size, scheme)
                self._encoders[scheme] = _Blocks(kind.block_size, nbytes, encoder, has_scale=False)
            elif scheme in BITS:
                how = {"bits": BITS[scheme], "block_size": self.block_size, "scale_type": scale_type}
                encoder = BlockEncoder(-1, **how, threads=threads)
                nbytes = quantised.blocks_size(1, **how) if scheme in BLOCKED else _TOGETHER * BITS[scheme] // 8
                elements = self.block_size or _TOGETHER
                self._encoders[scheme] = _Blocks(elements, nbytes, encoder, has_scale=scheme in BLOCKED)
        return self._encoders.get(scheme)

    def _by_blocks(self, sink: Sink, name: str, place: Row, scheme: str, blocks: _Blocks, nbytes: int) -> None:
        """Quantise a tensor, run by run, into the memory that the sink writes."""
        sums = [0.0, 0.0, 0.0]
        for run in _runs(place, blocks.elements):
            size = -(-run.size // blocks.elements) * blocks.nbytes
            sink.fill(size, blocks.nbytes, functools.partial(_encode, name, place, run, blocks, sums))
        self._note(name, scheme, place, nbytes, *sums)

    def _by_one_scale(self, sink: Sink, name: str, place: Row, scheme: str, blocks: _Blocks, nbytes: int) -> None:
        """Quantise a tensor as one run, which the search for the scale reads several times."""
        sums, nothing = [0.0, 0.0, 0.0], _Run(place.source, np.empty(0, np.uint8), 0, "float32", 0, 0)
        run = next(_runs(place, max(math.prod(place.shape), 1)), nothing)
        try:
            scale = blocks.encode.search_scale(run.source, run.begin, run.dtype, run.size)
        except Failed as failed:
            _fail(failed, name, place, run)
        sink.write(scale)
        encode = functools.partial(_encode, name, place, run, blocks, sums)
        sink.fill(nbytes - len(scale), blocks.nbytes, encode)
        sums[2] = largest_scale(np.frombuffer(scale, "<f2"))
        self._note(name, scheme, place, nbytes, *sums)

    def _whole(
        self, name: str, place: Row, nbytes: int, *, quantized: tuple[NDArray[np.uint8], list[float]] | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield all bytes of a tensor, which `payload` may have `quantized` already."""
        octets, sums = self._quantized(name, place) if quantized is None else quantized
        self._note(name, self.scheme, place, nbytes, *sums)
        yield octets

    def _quantized(self, name: str, place: Row) -> tuple[NDArray[np.uint8], list[float]]:
        """Quantise a whole tensor; return its bytes, and the sums for `_note`."""
        values, at = scratch(math.prod(place.shape), np.float32), 0
        for piece in _values(place, _PIECE):
            values[at : at + len(piece)] = piece
            at += len(piece)
        try:
            payload = quantised.quantize_adaptive(values, **self._options, empty=scratch)
        except QuantError as error:
            raise _named(error, name, values) from None
        how = {"block_size": self.block_size, "scale_type": self._options["scale_type"]}
        tensor = QuantizedTensor(self.scheme, values.shape, payload, **how)
        squared_error = 0.0
        for at in range(0, len(values), _PIECE):
            piece = values[at : at + _PIECE]
            squared_error += quantised.sum_of_squares(piece - decode_range(tensor, at, at + len(piece)))
        scale = largest_scale(tensor.scales.view("<f2")) if tensor.scales.size else 1.0
        return tensor.payload, [squared_error, quantised.sum_of_squares(values), scale]

    def _note(self, name: str, scheme: str, place: Row, nbytes: int, error: float, square: float, scale: float) -> None:
        info = QuantizedInfo.of(name, scheme, place.shape, (place.nbytes, nbytes), error, square)
        if scheme in GGML_SCHEMES:
            lost = info.relative_error > _LOST
        else:
            lost = self._options["scale_type"] == "fp16" and square > 0 and is_out_of_range(scale)
        self.done.append(info._replace(out_of_range=lost))


def _named(error: QuantError, name: str, values: NDArray[np.float32]) -> QuantError:
    """Return the error with the tensor, and the index of the first element that is not finite."""
    for begin in range(0, len(values), _PIECE):
        for at in np.flatnonzero(~np.isfinite(values[begin : begin + _PIECE])).tolist():
            return _not_finite(name, begin + at, values[begin + at])
    error.what = f"tensor {name!r}: {error.what}"
    return error


def _not_finite(name: str, at: int, value: np.float32) -> QuantError:
    what = f"tensor {name!r}: element {at} of the flattened tensor"
    return QuantError(what, actual=float(value), expected="a finite number")


def _element(row: Row, at: int) -> np.float32:
    """Return an element of a tensor as float32."""
    stored = numpy_dtype(row.dtype)
    octets = row.source.pread(row.offset + at * stored.itemsize, stored.itemsize)
    value: np.float32 = quantised.flat_floats(np.frombuffer(octets, stored))[0]
    return value


def _runs(row: Row, unit: int) -> Iterator[_Run]:
    """Yield a tensor in runs of whole blocks of `unit` elements; only the last block may be shorter."""
    at, count = 0, max(_PIECE // unit, 1) * unit
    if row.dtype.name in COMPARED and not row.dtype.swapped:
        width = COMPARED[row.dtype.name][1]
        stretches = row.source.stretches(row.offset, row.offset + row.nbytes)
        are_whole = len(stretches) == 1 or not any((end - begin) % (unit * width) for _, begin, end in stretches)
        if stretches and are_whole and all(file.c_random_input is not None for file, _, _ in stretches):
            for file, begin, end in stretches:
                c_input = file.c_random_input
                assert c_input is not None  # noqa: S101 - as above
                yield _Run(file, c_input, begin, row.dtype.name, at, (end - begin) // width)
                at += (end - begin) // width
            return
        for chunk in row.source.chunks(row.offset, row.nbytes, count * width):
            yield _Run(row.source, np.frombuffer(chunk, np.uint8), 0, row.dtype.name, at, len(chunk) // width)
            at += len(chunk) // width
        return
    for values in _values(row, count):
        yield _Run(row.source, values.view(np.uint8), 0, "float32", at, len(values))
        at += len(values)


def _encode(
    name: str,
    place: Row,
    run: _Run,
    blocks: _Blocks,
    sums: list[float],
    out: memoryview,
    at: int,
    earlier: Unwritten | None,
) -> None:
    """Fill `out` with blocks of a run from their byte `at` on.

    `sums` are the sums of squared errors and of squares, and the largest float16 scale, if any.
    """
    start = at // blocks.nbytes * blocks.elements
    count = min(-(-len(out) // blocks.nbytes) * blocks.elements, run.size - start)
    begin = run.begin + start * COMPARED[run.dtype][1]
    try:
        error, square = blocks.encode(run.source, begin, run.dtype, count, out, earlier)
    except Failed as failed:
        _fail(failed, name, place, run, start)
    sums[0] += error
    sums[1] += square
    if blocks.has_scale:
        scales = np.ndarray((-(-len(out) // blocks.nbytes),), "<f2", out, strides=(blocks.nbytes,))
        sums[2] = max(sums[2], largest_scale(scales))


def _fail(failed: Failed, name: str, place: Row, run: _Run, start: int = 0) -> NoReturn:
    """Raise the error of a call that failed for numbers of a run, from number `start` on."""
    if failed.what == "write":
        raise OSError(failed.error, os.strerror(failed.error)) from None
    if failed.what == "read":
        run.file.fail_reading(failed.at, run.begin + run.size * COMPARED[run.dtype][1], failed.error)
    bad = run.first + start + failed.at
    raise _not_finite(name, bad, _element(place, bad)) from None


def _values(row: Row, count: int) -> Iterator[NDArray[np.float32]]:
    """Yield a tensor as flat float32, `count` elements at a time; each piece is valid until the next one."""
    stored = numpy_dtype(row.dtype)
    for chunk in row.source.chunks(row.offset, row.nbytes, max(count, 1) * stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            yield np.frombuffer(chunk, stored).astype("<f4", copy=False)
