"""Reports of conversions and verifications; `verify`, which `TensorFile.verify` calls."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.arguments import as_threads, check_progress
from weightmap.core.formats import Verification, by_name
from weightmap.core.model.internals import check_unchanged, parts_of
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable


class QuantizedInfo(NamedTuple):
    """The outcome of quantising one tensor.

    Attributes
    ----------
    name : str
    scheme : str
    shape : tuple of int
    nbytes_before, nbytes : int
        Bytes of its data in the source, and quantised.
    bits_per_weight : float
    rmse : float
        Root of the mean squared error.
    relative_error : float
        `rmse` divided by the root of the mean square of the values.
    out_of_range : bool
        Whether the values are too large or too small for scales of float16: see `weightmap.quantize`.
    """

    name: str
    scheme: str
    shape: tuple[int, ...]
    nbytes_before: int
    nbytes: int
    bits_per_weight: float
    rmse: float
    relative_error: float
    out_of_range: bool = False

    @classmethod
    def of(
        cls, name: str, scheme: str, shape: tuple[int, ...], nbytes: tuple[int, int], error: float, square: float
    ) -> QuantizedInfo:
        """Compute a report from the bytes before and after, the sum of squared errors and the sum of squares."""
        size = math.prod(shape)
        bits, rmse = (8 * nbytes[1] / size, math.sqrt(error / size)) if size else (0.0, 0.0)
        return cls(name, scheme, shape, *nbytes, bits, rmse, math.sqrt(error / square) if square else 0.0)


class ConvertReport(NamedTuple):
    """The result of `convert`.

    Attributes
    ----------
    src, dst : str
        Their names in messages: the paths, or a word such as ``<bytes>`` for a source without a path.
    format, layout : str
        Format and layout of the new file.
    tensors : int
        Number of tensors written.
    nbytes : int
        Size of the new file.
    dropped : tuple of (str, str)
        Name of each omitted tensor, and the reason.
    warnings : tuple of str
        All losses, the dropped tensors included. If the target's metadata has only texts, numbers and booleans become
        texts, and the entry "weightmap.types" makes them numbers and booleans again on the way back; values that texts
        cannot hold, such as lists, are omitted and listed here.
    quantized : tuple of QuantizedInfo
        Every quantised tensor; if a manifest resumes an earlier run, only this run's.
    shards, skipped : int
        For a model in several files: the shards that this run had to write, and those finished by an earlier run.
    copied : tuple of str
        Files copied from a Hugging Face directory to another directory: configuration, tokenizer, chat template,
        licence, code, modules of sentence-transformers.
    """

    src: str
    dst: str
    format: str
    layout: str
    tensors: int
    nbytes: int
    dropped: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    quantized: tuple[QuantizedInfo, ...] = ()
    shards: int = 0
    skipped: int = 0
    copied: tuple[str, ...] = ()


# ----------------------------------------------------------------------------------------------------
# `TensorFile.verify` and its `VerifyReport`: reads a handle's files once and reports what was checked.


class VerifyReport(NamedTuple):
    """The result of `TensorFile.verify` for a sound file; a damaged one raises an error instead.

    Attributes
    ----------
    path : str or None
    format, layout : str
    checks : tuple of str
        Descriptions of the checks.
    warnings : tuple of str
        Legal oddities, and deviations tolerated by ``strict=False``.
    nbytes : int
        Bytes read.
    structure_only : str or None
        Why changes of tensor data would go unnoticed, such as "safetensors has no checksums"; None if checksums cover
        all data, or digests all files. For bytes without a checksum, verification only shows that they are readable.
    digests : str or None
        With ``trust=``, the digests of whole files that were compared, such as "SHA-256 of 2 files as recorded".
    """

    path: str | None
    format: str
    layout: str
    checks: tuple[str, ...]
    warnings: tuple[str, ...]
    nbytes: int
    structure_only: str | None = None
    digests: str | None = None

    @property
    def scope(self) -> str:
        """A summary of the checks: "structure and checksums", or "structure only, every byte readable" and why."""
        why = self.structure_only
        if self.digests is not None:
            return f"structure, {self.digests}"
        return "structure and checksums" if why is None else f"structure only, every byte readable: {why}"


def verify(file: Any, progress: Callable[[int, int], None] | None, threads: int | None) -> VerifyReport:
    """Verify a handle: see `TensorFile.verify`."""
    check_progress(progress)
    threads = None if threads is None else as_threads(threads)
    source, content, options = parts_of(file)
    table = content.table
    try:
        check_unchanged(file)
        table.detach_index()
        run = Verification([source, *content.sources], options, progress, threads)
        if not options.checked:  # opening has not checked it
            table.check()
        content.verify(run)
        disorder = table.disorder()
        if disorder is not None:
            run.warn(str(disorder))
    except TensorFileError as error:
        raise error.located(path=source.name, format=file.format) from None
    if progress is not None and run.done != run.total:
        progress(run.total, run.total)
    why = in_common([by_name(file.format).structure_only(content)] if run.reasons is None else run.reasons)
    warnings = (*content.warnings, *run.warnings)
    return VerifyReport(source.path, file.format, file.layout, tuple(run.checks), warnings, run.done, why)


def in_common(reasons: list[str | None]) -> str | None:
    """Return why only structure was checked: the reason that all files share, or each one with its number of files."""
    counts = Counter(reason for reason in reasons if reason is not None)
    if len(counts) == 1 and None not in reasons:
        return next(iter(counts))
    return "; ".join(f"{reason} ({count} of {len(reasons)} shards)" for reason, count in counts.items()) or None


class Residency(NamedTuple):
    """How much of a tensor is in memory.

    Attributes
    ----------
    resident, nbytes : int
        Bytes in memory, and all bytes.
    """

    resident: int
    nbytes: int
