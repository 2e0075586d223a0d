"""`save`: chooses format and layout, and refuses what they cannot express before it creates a file."""

from __future__ import annotations

import math
import operator
import os
from typing import TYPE_CHECKING, Any

from weightmap.arguments import as_integer, as_path, check_progress, mistyped
from weightmap.dtypes import DTYPES, FLOATING
from weightmap.errors import EncodeError, Remedy, TensorFileError
from weightmap.formats import FORMATS, Format, Payload, Request, Unfit, by_suffix, listed, refuse
from weightmap.io.atomic import directory_given, write_plan
from weightmap.model.payload import from_arrays
from weightmap.model.single import INDEX_SUFFIX, check_replaceable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from weightmap.io.sink import Plan
    from weightmap.typing import TensorLike

__all__ = ["aligned_to", "check_mappings", "named", "save"]

_SHARDS_INSTEAD = " in it, or max_shard_size= for shards"
_CARRIED = ("metadata", "vocab", "special_ids", "config", "tokenizer")


def named(format_: str, others: Iterable[str] = ()) -> Format:
    """Return the format called `format_`. Raises ValueError, with the formats that are written and `others`."""
    found = FORMATS.get(format_) if isinstance(format_, str) else None
    if found is None:
        written = (name for name, known in FORMATS.items() if known.plan is not None)
        raise ValueError(f"format is {format_!r}, expected one of {', '.join([*written, *others])}")
    return found


def choose(path: str, format_: str | None, layout: str | None) -> Format:
    """Return the format to write. Raises `EncodeError` or ValueError if it, or the layout, does not exist."""
    found = by_suffix(path) if format_ is None else named(format_)
    if found.plan is None:
        msg = f"{found.title} files can be read but not written"
        raise EncodeError(msg, path=path, format=found.name)
    if layout is not None and layout not in found.layouts:
        msg = f"layout is {layout!r}, expected one of {', '.join(found.layouts)}"
        raise ValueError(msg)
    return found


def choose_layout(found: Format, layout: str | None, metadata: Mapping[str, Any] | None) -> str:
    """Return the layout to write: the given one, else the one that the metadata names, else the format's first.

    Raises `EncodeError` when the metadata names one that does not exist.
    """
    if layout is None and found.layout_for is not None:
        layout = found.layout_for(metadata)
    return found.layouts[0] if layout is None else layout


def plan_request(path: str, found: Format, request: Request, cure: str = "convert with {}") -> Plan:
    """Ask the format for a plan. Raises an `EncodeError` that lists everything that the format cannot express.

    `cure` says how the caller gets other data types, ``{}`` being the option ``dtype``, and TYPE the type.
    """
    try:
        return _plan(found, request)
    except TensorFileError as error:
        if isinstance(error, EncodeError):
            error.remedy = error.remedy or _conversion(found, request, cure)
        raise error.located(path=path, format=found.name) from None


def _plan(found: Format, request: Request) -> Plan:
    """Check what holds for each format, and ask this one for a plan."""
    carried = found.carries[request.layout]
    foreign = [name for name in _CARRIED if getattr(request, name) is not None and name not in carried]
    if foreign:
        msg = f"{found.title} has no place for {', '.join(foreign)}"
        raise EncodeError(msg)
    most = found.aligns.get(request.layout, 1)
    if request.align > most:
        beyond = f" to more than {most} bytes" if most > 1 else ""
        msg = f"{found.title}, layout {request.layout}, cannot align tensors{beyond}"
        raise EncodeError(msg)
    schemes = found.schemes.get(request.layout, frozenset())
    quantized = list(request.tensors.those(lambda t: t.dtype.quantized and t.dtype.name not in schemes))
    if quantized:
        reasons = (f"quantised to {t.dtype.name}{f' ({t.refused})' if t.refused else ''}" for t in quantized)
        refuse(found.title, [Unfit("tensor", t.name, why) for t, why in zip(quantized, reasons, strict=True)])
    keys = found.metadata_keys
    homeless = [] if keys is None else [str(key) for key in request.metadata or () if key not in keys]
    if homeless:
        msg = f"{found.title} has no place for the metadata entries {listed(homeless)}"
        raise EncodeError(msg)
    # No array has such a shape, but a conversion to larger elements may give it to an empty tensor.
    endless = [f"{t.name[:80]!r} {t.shape}" for t in request.tensors.those(_is_endless)]
    if endless:
        msg = f"the byte counts of these shapes overflow in every reader: {', '.join(endless[:100])}"
        raise EncodeError(msg)
    assert found.plan is not None  # noqa: S101 - `choose` has checked it
    return found.plan(request)


def _is_endless(tensor: Payload) -> bool:
    """Say whether an empty tensor has other dimensions whose product is too large."""
    whole = tensor.nbytes or tensor.dtype.quantized
    return not whole and math.prod(filter(None, tensor.shape)) * tensor.dtype.bits >> 3 >= 1 << 63


def _conversion(found: Format, request: Request, cure: str) -> Remedy | None:
    """Suggest a data type to convert to, if the format can express everything then."""
    known, schemes = found.dtypes[request.layout], found.schemes.get(request.layout, frozenset())
    wanted = next((name for name in ("float32", "float16") if name in known), None)
    if wanted is None:
        return None
    tensors = list(request.tensors)
    converted = request.of([_as_dtype(tensor, wanted, known, schemes) for tensor in tensors])
    if all(map(operator.is_, converted.tensors, tensors)):
        return None
    try:
        _plan(found, converted)
    except TensorFileError:
        return None
    return Remedy(cure.replace("TYPE", wanted), "dtype", wanted)


def _as_dtype(tensor: Payload, wanted: str, known: Collection[str], schemes: Collection[str]) -> Payload:
    """Return a tensor as the option ``dtype`` would make it, without its bytes; itself if the format holds it."""
    lacking = tensor.dtype.name not in schemes if tensor.dtype.quantized else tensor.dtype.name not in known
    if not lacking or not (tensor.dtype.quantized or tensor.dtype.name in FLOATING):
        return tensor
    nbytes = math.prod(tensor.shape) * DTYPES[wanted].bits // 8
    return Payload(tensor.name, DTYPES[wanted], tensor.shape, nbytes, tuple)


def aligned_to(align: int | None) -> int:
    """Return an alignment that was asked for, 1 for None. Raises ValueError for one that no file may have."""
    if align is None:
        return 1
    multiple = as_integer("align", align)
    if multiple not in range(8, 4097) or multiple & (multiple - 1):
        msg = f"align is {multiple}, expected a power of two from 8 to 4096"
        raise ValueError(msg)
    return multiple


def check_mappings(tensors: Any, **optional: Any) -> None:
    """Raise TypeError for tensors that are not a mapping, and for other arguments, unless None, that are none."""
    for name, given in [("tensors", tensors), *optional.items()]:
        if not hasattr(given, "items") and (given is not None or given is tensors):
            raise mistyped(name, given, "a mapping")


def save(
    path: str | bytes | os.PathLike[Any],
    tensors: Mapping[str, TensorLike],
    *,
    format: str | None = None,
    layout: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    vocab: Sequence[str] | None = None,
    special_ids: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    checksums: bool = True,
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
    align: int | None = None,
    max_shard_size: int | str | None = None,
) -> None:
    """Write tensors to a file, atomically: a reader finds the whole new file, or the old one.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        An existing file is replaced; the new one gets its permissions, without setuid, setgid and sticky bits. A
        symbolic link is followed.
    tensors : mapping of str to array_like, torch.Tensor, jax.Array or QuantizedTensor
        Arrays of any shape, strides and byte order, written row-major and little-endian. Torch tensors may be on any
        device, require gradients, and be bfloat16 or float8; tensors that share memory are each written in full. The
        same tensors always give the same bytes.
    format : str, optional
        One of `formats()` that can be written; by default the suffix decides: ``.weights``, ``.safetensors``, ...
    layout : str, optional
        One of the format's layouts (EMBD: "spec", "simple"; CNN v2: "v2", "v1", by default the ``version`` in
        `metadata`; finalfusion: "upstream", "spec").
    metadata : mapping, optional
        safetensors takes strings; EMBD takes strings, and integers, which it writes as decimal strings; CNN v2 takes
        ``version`` and ``mip_level``; finalfusion takes what TOML can express, and needs the package tomli_w unless
        the metadata was read from such a file; GGUF takes numbers, strings and lists of them.
    vocab : sequence of str, optional
        Tokens by id. finalfusion files need one; an attribute ``subwords`` makes it a subword vocabulary: a
        `Vocabulary` of such a file has it, as has ``Vocabulary.of(words, subwords=Subwords(...))``.
    special_ids : mapping of str to int, optional
        Ids of pad, unk, cls, sep and mask; by default those of the tokens ``[PAD] [UNK] [CLS] [SEP] [MASK]``.
    config, tokenizer : optional
        Model configuration and tokenizer, for formats that have a place for them.
    checksums : bool
        Write checksums of the data where the format has them.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.
    durable : bool
        Flush to the disk before the file takes its place. False is faster, for files that can be made again.
    align : int, optional
        Let tensors begin at multiples of this power of two in the file, as for `convert`.
    max_shard_size : int or str, optional
        Write files with up to so many bytes of tensors each, such as ``"5GB"`` or ``"4GiB"``: for ``m.safetensors``
        the shards ``m-00001-of-00003.safetensors`` ... and, last, ``m.safetensors.index.json``, which `open` takes, as
        does transformers. A tensor that is larger gets a file for itself; a model that fits into one is written as
        without this. `path` may also be a directory, with `format`, or an index. Each shard has the metadata, the
        first also vocabulary, configuration and tokenizer.

    Raises
    ------
    EncodeError
        When the format cannot express this; it names every offending tensor, and no file was created.
    MissingDependencyError
        When new metadata of a finalfusion file need the package tomli_w (``pip install tomli-w``).
    OSError
        As the system reports it; the old file is intact and no temporary file remains.
    TargetError
        When a sharded model, or its index, is there already, or another run is writing it.
    TypeError
        For an argument of another type.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.weights", {"w": np.ones((2, 2), np.float32)}, metadata={"model_name": "tiny"})
    >>> wm.open("model.weights").metadata["model_name"]
    'tiny'
    """
    name, boundary = as_path("path", path), aligned_to(align)
    check_mappings(tensors, metadata=metadata, special_ids=special_ids)
    if vocab is not None and (isinstance(vocab, str) or not hasattr(vocab, "__len__")):
        raise mistyped("vocab", vocab, "a sequence of tokens")
    check_progress(progress)
    if max_shard_size is None:
        most, chosen_by = None, name
    else:
        from weightmap.model import splitting  # noqa: PLC0415 - most programs save single files

        most, chosen_by = splitting.bytes_of_size(max_shard_size), splitting.named_by(name)
    try:
        if most is None and name.endswith(INDEX_SUFFIX):
            msg = "this name is that of an index of shards, which holds no tensors itself"
            raise EncodeError(msg, remedy=Remedy("{} writes shards and their index", "max_shard_size"))
        found = choose(chosen_by, format, layout)
        payloads = from_arrays(tensors)
        chosen = choose_layout(found, layout, metadata)
    except TensorFileError as error:
        if most is None and os.path.isdir(name):
            raise directory_given(name, _SHARDS_INSTEAD) from None
        raise error.located(path=name) from None
    check_replaceable(name)

    def plan(path: str, some: Sequence[Payload], part: tuple[int, int, int] | None = None) -> Plan:
        beside = (vocab, special_ids, config, tokenizer) if part is None or not part[0] else ()
        request = Request(some, chosen, metadata, *beside, checksums=checksums, align=boundary, part=part)
        return plan_request(path, found, request, "give arrays of TYPE")

    if most is None:
        try:
            write_plan(name, plan(name, payloads), progress=progress, durable=durable)
        except IsADirectoryError:
            raise directory_given(name, _SHARDS_INSTEAD) from None
    else:
        splitting.write_split(name, found, payloads, most, plan, progress=progress, durable=durable)
