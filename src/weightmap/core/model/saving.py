"""`save`: chooses format and layout, and refuses what they cannot express before it creates a file."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import os
import sys
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import quoted
from weightmap.core import formats
from weightmap.core.arguments import as_integer, as_path, check_flags, check_progress, mistyped, names_moved
from weightmap.core.bytes.atomic import directory_given, file_exists, write_plan
from weightmap.core.bytes.open_source import takes_addresses
from weightmap.core.dtypes import CROSSING, DTYPES, FLOATING, PAIRS, SCHEMES, DType, dtype_of
from weightmap.core.formats._writing import Unfit
from weightmap.core.hooks import import_part
from weightmap.core.model.opening import open
from weightmap.core.model.single import INDEX_SUFFIX, check_replaceable
from weightmap.core.quant import PQShape
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.errors import EncodeError, Remedy, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.sink import WritePlan
    from weightmap.core.model.typing import TensorLike, TokenizerLike

# Tensors of torch. Nothing here imports torch: a caller that has a tensor has imported it.


def is_torch(value: Any) -> bool:
    """Whether this is a torch tensor; parameters are."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def torch_info(tensor: Any) -> tuple[DType, tuple[int, ...], int]:
    """Return dtype, shape and size in bytes that a tensor has in a file, without touching its data.

    Raises
    ------
    EncodeError
        The tensor is sparse or quantised, has no data, or has a dtype that files lack.
    """
    name, shape = _dense(tensor), tuple(tensor.shape)
    if name == PAIRS and shape:
        name, shape = "float4_e2m1fn", (*shape[:-1], 2 * shape[-1])
    dtype = DTYPES.get(name)
    if dtype is None:
        raise EncodeError("data type", expected="one that formats store", actual=str(tensor.dtype))
    return dtype, shape, math.prod(shape) * dtype.bits // 8


def torch_elements(tensor: Any) -> NDArray[Any]:
    """Return the elements of a tensor that `torch_info` has accepted; copied if it is on another device."""
    if _dense(tensor) == PAIRS:
        tensor = tensor.detach().cpu().view(sys.modules["torch"].uint8)
    return from_torch(tensor)


def check_module(name: str, value: Any) -> None:
    """Raise TypeError for an argument that does not work like a module of torch."""
    if isinstance(value, type) or not hasattr(value, "load_state_dict") or hasattr(value, "param_groups"):
        raise mistyped(name, value, "a torch.nn.Module")


def from_torch(tensor: Any) -> NDArray[Any]:
    """Return the values of a tensor as an array.

    Parameters
    ----------
    tensor : torch.Tensor
        Dense, on any device, with or without gradient.

    Returns
    -------
    np.ndarray
        Same shape and strides; shares the memory of a CPU tensor. bfloat16 and float8 come as types of ml_dtypes.

    Raises
    ------
    EncodeError
        The tensor is sparse or quantised, or of a dtype that numpy and ml_dtypes lack.
    """
    if not is_torch(tensor):
        raise mistyped("tensor", tensor, "a torch.Tensor")
    name = _dense(tensor)
    # Conjugation and negation are flags on the tensor that numpy would not see.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        if name in CROSSING:
            import ml_dtypes  # noqa: PLC0415 - costs 10 ms, needed by few tensors

            crossing = getattr(sys.modules["torch"], np.dtype(CROSSING[name]).name)
            integers: NDArray[Any] = plain.view(crossing).numpy()
            return integers.view(getattr(ml_dtypes, name))
        array: NDArray[Any] = plain.numpy()
    except TypeError:
        raise EncodeError("data type", expected="one that numpy or ml_dtypes has", actual=str(tensor.dtype)) from None
    except RuntimeError:  # a subclass that holds its values elsewhere
        raise EncodeError(f"a torch tensor of class {type(tensor).__name__} cannot be written") from None
    return array


def _dense(tensor: Any) -> str:
    """Return the name of a tensor's dtype. Raises `EncodeError` when the tensor is not dense, or has no data."""
    try:
        tensor.shape  # noqa: B018 - nested tensors and uninitialised parameters have none
    except RuntimeError:
        raise EncodeError("a torch tensor that is nested or not initialised cannot be written") from None
    if tensor.layout is not sys.modules["torch"].strided or tensor.is_quantized:
        raise EncodeError("a sparse or quantised torch tensor cannot be written")
    if tensor.device.type == "meta":
        raise EncodeError("a torch tensor on the device meta has no data")
    return str(tensor.dtype).removeprefix("torch.")


# ----------------------------------------------------------------------------------------------------
# Turns a user's tensors into `Payload`s: row-major little-endian bytes, whatever the array's strides.

# Bytes copied at once when an array must be reordered; they fit into the L2 cache.
PIECE = 1 << 20
# Arrays up to this many bytes are copied: `tobytes` is one call, a view of the bytes takes several.
_SMALL = 1 << 14
_BIG_ENDIAN_HOST = sys.byteorder == "big"


def pieces(array: NDArray[Any]) -> Iterable[bytes | memoryview]:
    """Return the elements of `array` in row-major order as pieces of little-endian bytes.

    A large contiguous array is one view. Other arrays are copied in pieces of about `PIECE` bytes, one at a time, so
    that memory stays flat.
    """
    swapped = _swapped(array.dtype)
    if array.nbytes <= _SMALL and not swapped:
        return (array.tobytes(),)
    if array.flags.c_contiguous and not swapped:
        # The types of ml_dtypes have no buffer format, and a 0-d array has no length: view both as bytes.
        return (memoryview(array.reshape(-1).view(np.uint8)),)
    return _copies(array, PIECE)


def _copies(array: NDArray[Any], size: int) -> Iterator[memoryview]:
    if array.nbytes == 0:
        return
    if array.nbytes <= size or array.ndim == 0:
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        yield memoryview(little.reshape(-1).view(np.uint8))
        return
    row = array.nbytes // len(array)
    if row > size:
        for part in array:
            yield from _copies(part, size)
        return
    step = max(1, size // max(row, 1))
    for start in range(0, len(array), step):
        yield from _copies(array[start : start + step], max(size, step * row))


def _swapped(dtype: np.dtype[Any]) -> bool:
    return dtype.byteorder == ">" or (_BIG_ENDIAN_HOST and dtype.byteorder == "=")


def from_arrays(tensors: Mapping[str, Any]) -> list[formats.Payload]:
    """Return the payload of each tensor of a mapping. Raises an `EncodeError` that names all that cannot be arrays."""
    payloads, reasons = [], []
    infos = {info.name: info for info in tensors.infos()} if hasattr(tensors, "infos") else {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            reasons.append(f"tensor {name!r}: its name is not a string")
            continue
        if isinstance(value, QuantizedTensor):
            if value.scheme in SCHEMES:
                payloads.append(from_quantized(name, value))
            else:  # a parameter of a quantised checkpoint
                what = f"tensor {quoted(name)}: no format stores {value.scheme} as one tensor"
                reasons.append(f"{what}; dequantize() or weightmap.convert decodes it")
            continue
        if type(value) is not np.ndarray and is_torch(value):
            try:
                payloads.append(_from_torch(name, value))
            except EncodeError as error:
                reasons.append(f"tensor {name!r}: {error}")
            continue
        array = value if type(value) is np.ndarray else _asarray(value)
        if array is None:
            reasons.append(f"tensor {name!r}: no format stores type {type(value).__name__}")
            continue
        # uint8 arrays of a handle may hold packed elements.
        info = infos.get(name) if array.dtype == np.uint8 else None
        dtype = dtype_of(array.dtype) if info is None else DTYPES.get(info.dtype)
        if dtype is None or (info is None and dtype.packed):
            # A packed type of ml_dtypes has a byte for each element in memory.
            what = "" if dtype is None else " with a byte for each element"
            reasons.append(
                f"tensor {name!r}: no format stores dtype {array.dtype if info is None else info.dtype}{what}"
            )
        else:
            shape = array.shape if info is None else info.shape
            payloads.append(formats.Payload(name, dtype, shape, array.nbytes, pieces, array))
    if reasons:
        raise EncodeError(f"cannot write {'; '.join(reasons)}")
    return payloads


def _from_torch(name: str, tensor: Any) -> formats.Payload:
    """Return the payload of a torch tensor; one on another device is copied from there when it is written."""
    dtype, shape, nbytes = torch_info(tensor)
    if tensor.device.type == "cpu":
        return formats.Payload(name, dtype, shape, nbytes, pieces, torch_elements(tensor))
    return formats.Payload(name, dtype, shape, nbytes, lambda: pieces(torch_elements(tensor)))


def from_quantized(name: str, value: QuantizedTensor) -> formats.Payload:
    """Return the payload of a quantised tensor: its bytes as they are."""
    if value.scheme == "pq":
        return _from_product(name, value)
    dtype, block_size, scale_type = SCHEMES[value.scheme], value.block_size, value.scale_type
    octets = np.ascontiguousarray(value.payload)
    chunks = functools.partial(pieces, octets)
    return formats.Payload(name, dtype, value.shape, value.nbytes, chunks, block_size=block_size, scale_type=scale_type)


def _from_product(name: str, value: Any) -> formats.Payload:
    """Return the payload of a product-quantised tensor: projection, codebooks, norms and codes."""
    arrays = [part for part in (value.projection, value.codebooks, value.norms, value.codes) if part is not None]
    quantized_len, n_centroids, _ = value.codebooks.shape
    return formats.Payload(
        name,
        SCHEMES["pq"],
        value.shape,
        sum(part.nbytes for part in arrays),
        lambda: itertools.chain.from_iterable(map(pieces, arrays)),
        parts=PQShape(quantized_len, n_centroids, value.projection is not None, value.norms is not None),
    )


def _asarray(value: Any) -> NDArray[Any] | None:
    """Convert a scalar, a list, or an array of another library; return None if numpy cannot."""
    if isinstance(value, np.ma.MaskedArray):  # the mask would be lost silently
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if array.dtype.hasobject else array


_SHARDS_INSTEAD = " in it, or max_shard_size= and format= for shards"
_CARRIED = ("metadata", "vocab", "special_ids", "config", "tokenizer")


def format_named(format_: str, others: Iterable[str] = ()) -> formats.Format:
    """Return the format called `format_`. Raises a ValueError that lists the formats to write and `others`."""
    target = formats.FORMATS.get(format_) if isinstance(format_, str) else None
    if target is None:
        written = (name for name, each in formats.FORMATS.items() if each.plan is not None)
        raise ValueError(f"format is {format_!r}, expected one of {', '.join([*written, *others])}")
    return target


def choose(path: str, format_: str | None, layout: str | None, others: Iterable[str] = ()) -> formats.Format:
    """Return the format to write. Raises `EncodeError` or ValueError if it, or the layout, does not exist.

    `others` are names of formats that the caller itself writes, for the error.
    """
    target = formats.by_suffix(path) if format_ is None else format_named(format_, others)
    if target.plan is None:
        raise EncodeError(f"{target.title} files can be read but not written", path=path, format=target.name)
    if layout is not None and layout not in target.layouts:
        several = len(target.layouts) > 1
        offer = f"expected one of {', '.join(target.layouts)}" if several else f"and {target.title} has none"
        raise ValueError(f"layout is {layout!r}, {offer}")
    return target


def choose_layout(target: formats.Format, layout: str | None, metadata: Mapping[str, Any] | None) -> str:
    """Return the layout to write: the given one, else the one that the metadata names, else the format's first.

    Raises `EncodeError` when the metadata names one that does not exist.
    """
    if layout is None and target.layout_for is not None:
        layout = target.layout_for(metadata)
    return target.layouts[0] if layout is None else layout


@contextlib.contextmanager
def meant_by_suffix(path: str, target: Any) -> Iterator[None]:
    """Explain in errors that an ambiguous suffix chose the format; `target` is None if the caller named it."""
    try:
        yield
    except EncodeError as error:
        if isinstance(target, formats.Format) and target.suffix_means and error.path == path:
            error.what = f"{os.path.splitext(path)[1]} means {target.title} here, {target.suffix_means}: {error.what}"
            another_kind = any(line.startswith(("tensor", "vocab")) for line in error.refused)
            if another_kind and (error.remedy is None or error.remedy.option == "exclude"):
                words = "for words, convert with {} or fasttext; for a model, write safetensors"
                error.remedy = Remedy(words, "format", "word2vec")
        raise


def plan_request(
    path: str,
    target: formats.Format,
    request: formats.Request,
    cure: str = "convert with {}",
    leave: str = "leave these out with {}",
) -> WritePlan:
    """Ask the format for a plan. Raises an `EncodeError` that lists everything that the format cannot express.

    `cure` tells the user how to get other data types; ``{}`` stands for the option ``dtype``, TYPE for the type.
    `leave` tells how to leave tensors out; ``{}`` stands for the option ``exclude``.
    """
    try:
        return _plan(target, request)
    except TensorFileError as error:
        if isinstance(error, EncodeError):
            error.remedy = error.remedy or _conversion(target, request, cure) or _elsewhere(target, request, leave)
        raise error.located(path=path, format=target.name) from None


def _plan(target: formats.Format, request: formats.Request) -> WritePlan:
    """Check what every format demands, and ask this one for a plan."""
    formats.check_names([request.tensors])
    carried = target.carries[request.layout]
    foreign = [name for name in _CARRIED if getattr(request, name) is not None and name not in carried]
    if foreign:
        places = ", ".join(name for name in _CARRIED if name in carried) or "tensors alone"
        what = f"{target.title} has no place for {', '.join(foreign)}; it has one for {places}"
        raise EncodeError(what).naming(foreign)
    max_align = target.aligns.get(request.layout, 1)
    if request.align > max_align:
        limit = f" to more than {max_align} bytes" if max_align > 1 else ""
        raise EncodeError(f"{target.title}, layout {request.layout}, cannot align tensors{limit}")
    schemes = target.schemes.get(request.layout, frozenset())
    quantized = list(request.tensors.filter(lambda t: t.dtype.quantized and t.dtype.name not in schemes))
    if quantized:
        reasons = (f"quantised to {t.dtype.name}{f' ({t.refused})' if t.refused else ''}" for t in quantized)
        formats.refuse(target.title, [Unfit("tensor", t.name, why) for t, why in zip(quantized, reasons, strict=True)])
    keys = target.metadata_keys
    homeless = [] if keys is None else [str(key) for key in request.metadata or () if key not in keys]
    if homeless:
        raise EncodeError(f"{target.title} has no place for the metadata entries {formats.listed(homeless)}")
    # An array cannot have such a shape, but converting an empty tensor to larger elements may produce one.
    endless = [f"{t.name[:80]!r} {t.shape}" for t in request.tensors.filter(_is_endless)]
    if endless:
        raise EncodeError(f"the byte counts of these shapes overflow in every reader: {', '.join(endless[:100])}")
    assert target.plan is not None  # noqa: S101 - `choose` has checked it
    return target.plan(request)


def _is_endless(tensor: formats.Payload) -> bool:
    """Whether the product of the other dimensions of an empty tensor is too large."""
    whole = tensor.nbytes or tensor.dtype.quantized
    return not whole and math.prod(filter(None, tensor.shape)) * tensor.dtype.bits >> 3 >= 1 << 63


def _conversion(target: formats.Format, request: formats.Request, cure: str) -> Remedy | None:
    """Suggest a data type to convert to, if that lets the format express everything."""
    dtypes, schemes = target.dtypes[request.layout], target.schemes.get(request.layout, frozenset())
    dtype = next((name for name in ("float32", "float16") if name in dtypes), None)
    if dtype is None:
        return None
    tensors = list(request.tensors)
    converted = request._replace(
        tensors=formats.Tensors([_as_dtype(tensor, dtype, dtypes, schemes) for tensor in tensors])
    )
    if all(map(operator.is_, converted.tensors, tensors)):
        return None
    return Remedy(cure.replace("TYPE", dtype), "dtype", dtype) if _expresses(target, converted) else None


def _elsewhere(target: formats.Format, request: formats.Request, leave: str) -> Remedy | None:
    """Suggest leaving out the tensors whose data type the format lacks, and formats that hold them all."""
    writable = {False: target.dtypes[request.layout], True: target.schemes.get(request.layout, frozenset())}
    tensors = list(request.tensors)
    fitting = [tensor for tensor in tensors if tensor.dtype.name in writable[tensor.dtype.quantized]]
    if len(fitting) == len(tensors):
        return None
    others = (other for other in formats.FORMATS.values() if other.plan is not None)
    able = [
        other.name
        for other in others
        if _expresses(other, formats.Request(formats.Tensors(tensors), other.layouts[0], align=request.align))
    ]
    ways = [leave] if fitting and _expresses(target, request._replace(tensors=formats.Tensors(fitting))) else []
    ways += [f"write {' or '.join(filter(None, (', '.join(able[:-1]), able[-1])))}"] if able else []
    return Remedy(", or ".join(ways), "exclude") if ways else None


def _expresses(target: formats.Format, request: formats.Request) -> bool:
    try:
        _plan(target, request)
    except TensorFileError:
        return False
    return True


def _as_dtype(
    tensor: formats.Payload, dtype: str, dtypes: Collection[str], schemes: Collection[str]
) -> formats.Payload:
    """Return a tensor, without its bytes, as the option ``dtype`` would convert it; itself if the format holds it."""
    lacking = tensor.dtype.name not in schemes if tensor.dtype.quantized else tensor.dtype.name not in dtypes
    if not lacking or not (tensor.dtype.quantized or tensor.dtype.name in FLOATING):
        return tensor
    nbytes = math.prod(tensor.shape) * DTYPES[dtype].bits // 8
    return formats.Payload(tensor.name, DTYPES[dtype], tensor.shape, nbytes, tuple)


def aligned_to(align: int | None) -> int:
    """Return the requested alignment, 1 for None. Raises ValueError for one that no file may have."""
    if align is None:
        return 1
    multiple = as_integer("align", align)
    if multiple not in range(8, 4097) or multiple & (multiple - 1):
        raise ValueError(f"align is {multiple}, expected a power of two from 8 to 4096")
    return multiple


@dataclass(slots=True, frozen=True)
class Output:
    """How `save` and `convert` write files.

    Parameters
    ----------
    layout : str, optional
        One of the format's layouts (EMBD: "spec", "simple"; BinTensors: "spec", "current"; CNN v2: "v2", "v1", by
        default the ``version`` in the metadata; finalfusion: "upstream", "spec").
    align : int, optional
        Align tensors in the file to multiples of this power of two, from 8 to 4096: jax shares memory aligned to 64
        bytes and copies any other. EMBD always has 64; in GGUF it becomes ``general.alignment``. safetensors, and
        BinTensors up to 64, allow nothing between tensors: the header is padded, and tensors whose size is a multiple
        come first. Other formats refuse.
    checksums : bool
        Write checksums of the data if the format has them.
    sha256sums : bool
        Also write a ``SHA256SUMS`` in the folder, as sha256sum does, for this file or for its shards and their index.
        An existing one keeps its lines about other files. ``open(path, trust="recorded")`` compares with it.
    durable : bool
        Flush to the disk before the file takes its place. False is faster and suits files that can be made again.
    overwrite : bool
        Replace an existing file. False raises a TargetError instead, also for a file, or an object up to 32 MiB in a
        store, that appears meanwhile; for a larger object the store is asked just before writing. A sharded model is
        never replaced.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> tensors = {"w": np.ones((2, 2), np.float32)}
    >>> wm.save("model.weights", tensors, output=wm.Output("simple", durable=False))
    >>> wm.open("model.weights").layout
    'simple'
    """

    layout: str | None = None
    _: KW_ONLY
    align: int | None = None
    checksums: bool = True
    sha256sums: bool = False
    durable: bool = True
    overwrite: bool = True

    def __post_init__(self) -> None:
        if self.layout is not None and not isinstance(self.layout, str):
            raise mistyped("layout", self.layout, "a str")
        aligned_to(self.align)
        check_flags(self, "checksums", "sha256sums", "durable", "overwrite")

    @property
    def alignment(self) -> int:
        """The alignment in bytes, 1 for none."""
        return 1 if self.align is None else int(self.align)

    @classmethod
    def of(cls, output: Output | None) -> Output:
        """Return the argument `output` of a function, by default the usual one; TypeError for anything else."""
        if output is None:
            return cls()
        if not isinstance(output, cls):
            raise mistyped("output", output, "a weightmap.Output")
        return output


def check_mappings(tensors: Any, **optional: Any) -> None:
    """Raise TypeError unless tensors are a mapping, and every other argument a mapping or None."""
    for name, value in [("tensors", tensors), *optional.items()]:
        if not hasattr(value, "items") and (value is not None or value is tensors):
            raise mistyped(name, value, "a mapping")


@names_moved
@takes_addresses("path", 0)
def save(
    path: str | bytes | os.PathLike[Any],
    tensors: Mapping[str, TensorLike] | str | os.PathLike[str] | bytes,
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    vocab: Sequence[str] | None = None,
    special_ids: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: TokenizerLike | Mapping[str, Any] | None = None,
    max_shard_size: int | str | None = None,
    output: Output | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write tensors to a file, atomically: a reader finds the whole new file, or the old one.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        An existing file is replaced; the new one gets its permissions, without setuid, setgid and sticky bits. A
        symbolic link is followed. Or an address in a store that takes objects (``s3://``, ``gs://``, ``az://``): files
        are made in the system's directory for temporary files and uploaded once complete, large ones in parts, the
        index last. A single object replaces an existing one; if there are several, none may exist.
    tensors : mapping of str to array_like, torch.Tensor, jax.Array or QuantizedTensor
        An open handle is such a mapping, and so is ``f.weights``; a path or content is opened. `save` writes only their
        tensors: `convert` also takes the rest of the file, in flat memory.
        Arrays may have any shape, strides and byte order, and are written row-major and little-endian. Torch tensors
        may be on any device, require gradients, and be bfloat16 or float8; tensors that share memory are each written
        in full. The same tensors always give the same bytes.
    format : str, optional
        One of `formats()` that can be written; by default the suffix decides: ``.weights``, ``.safetensors``, ...
    metadata : mapping, optional
        safetensors takes strings; EMBD takes strings, and integers, which it writes as decimal strings; CNN v2 takes
        ``version`` and ``mip_level``; finalfusion takes what TOML can express, and needs the package tomli_w unless
        the metadata was read from such a file; GGUF takes numbers, strings and lists of them.
    vocab : sequence of str, optional
        Tokens by id. finalfusion files need one. An attribute ``subwords`` makes it a subword vocabulary: the
        `Vocabulary` of such a file has one, and so has ``Vocabulary.of(words, subwords=Subwords(...))``.
    special_ids : mapping of str to int, optional
        Ids of pad, unk, cls, sep and mask; by default the special ids of a file's `vocab`, else the ids of the tokens
        ``[PAD] [UNK] [CLS] [SEP] [MASK]``.
    config : mapping, optional
        Model configuration, for formats that have a place for it: AMB.
    tokenizer : mapping or object, optional
        For AMB: `TensorFile.tokenizer` of another file, or a mapping (or an object with these attributes) of ``type``
        (0 BPE, 1 SentencePiece, 2 WordPiece, 3 custom), ``special_ids`` (by the names bos, eos, pad, unk, mask) and
        ``payload``, the vocabulary as bytes.
    max_shard_size : int or str, optional
        The most bytes of tensors per file, such as ``"5GB"`` or ``"4GiB"``. A larger model is split: ``m.safetensors``
        becomes the shards ``m-00001-of-00003.safetensors`` ... and, written last, ``m.safetensors.index.json``, which
        `open` and transformers take. A larger tensor gets its own file; a model that fits into one file is not split.
        `path` may also be a directory, with `format`, or an index. Each shard has the metadata, the first also
        vocabulary, configuration and tokenizer.
    output : Output, optional
        Layout, alignment, checksums, and how the file takes its place.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.

    Raises
    ------
    EncodeError
        When the format cannot express this; it names every offending tensor. No file was created.
    MissingDependencyError
        When new metadata of a finalfusion file need the package tomli_w (the extra ``[fifu]``).
    OSError
        As the system reports it; the old file is intact, and neither temporary files nor new shards remain.
    TargetError
        When a sharded model or its index exists already, or another run is writing it; when the target directory has
        another model under a usual name, such as ``model.safetensors``; with ``Output(overwrite=False)``, when the file
        exists.
    TypeError
        For an argument of another type.
    ValueError
        For a format, layout or size of shards that does not exist.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.ones((2, 2), np.float32)}, metadata={"model_name": "tiny"})
    >>> wm.open("model.weights").metadata["model_name"]
    'tiny'
    """
    if isinstance(tensors, (str, os.PathLike, bytes)):
        tensors = open(tensors)
    name, how = as_path("path", path), Output.of(output)
    check_mappings(tensors, metadata=metadata, special_ids=special_ids)
    if vocab is not None and (isinstance(vocab, str | dict | set | frozenset) or not hasattr(vocab, "__len__")):
        raise mistyped("vocab", vocab, "a sequence of tokens")
    check_progress(progress)
    if max_shard_size is None:
        limit, chosen_by = None, name
    else:
        from weightmap.core.model import sharding  # noqa: PLC0415 - most programs save single files

        # Shards have the suffix of their index without its ending.
        limit, chosen_by = sharding.bytes_of_size(max_shard_size), name.removesuffix(INDEX_SUFFIX)
    if not how.overwrite and os.path.lexists(name) and not os.path.isdir(name):
        raise file_exists(name)
    try:
        if limit is None and name.endswith(INDEX_SUFFIX):
            msg = "this is the name of an index of shards, which holds no tensors itself"
            raise EncodeError(msg, remedy=Remedy("{} writes shards and their index", "max_shard_size"))
        target_format = choose(chosen_by, format, how.layout)
        payloads = from_arrays(tensors)
        layout = choose_layout(target_format, how.layout, metadata)
        carried = target_format.carries[layout]
        for part in ("subwords", "special_ids") if "vocab" in carried else ():
            if part not in carried and getattr(vocab, part, None):
                raise EncodeError(f"{target_format.title} has no place for {part}: list(vocab) leaves them behind")
        special_ids = (getattr(vocab, "special_ids", None) or None) if special_ids is None else special_ids
    except TensorFileError as error:
        if limit is None and os.path.isdir(name):
            raise directory_given(name, _SHARDS_INSTEAD) from None
        raise error.located(path=name) from None
    check_replaceable(name)
    lists = import_part("weightmap.trust.lists", "sha256sums=") if how.sha256sums else None
    if lists is not None:
        lists.listed_beside(name)  # which fails before anything is written

    extras = (vocab, special_ids, config, tokenizer)
    whole = formats.Request(
        formats.Tensors(payloads), layout, metadata, *extras, checksums=how.checksums, align=how.alignment
    )
    later_part = whole._replace(vocab=None, special_ids=None, config=None, tokenizer=None)

    def plan(path: str, some: Sequence[formats.Payload], part: tuple[int, int, int] | None = None) -> WritePlan:
        request = (whole if part is None or not part[0] else later_part)._replace(
            tensors=formats.Tensors(some), part=part
        )
        return plan_request(path, target_format, request, "give arrays of TYPE", "leave these out")

    if limit is None:
        try:
            with meant_by_suffix(name, target_format if format is None else None):
                planned = plan(name, payloads)
            write_plan(name, planned, progress=progress, durable=how.durable, overwrite=how.overwrite)
        except IsADirectoryError:
            raise directory_given(name, _SHARDS_INSTEAD) from None
    else:
        sharding.write_split(
            name, target_format, payloads, limit, plan, progress=progress, durable=how.durable, overwrite=how.overwrite
        )
    if lists is not None:
        lists.write_sums(name)
