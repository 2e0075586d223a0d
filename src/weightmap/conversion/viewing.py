"""A model as a conversion sees it: its parameters, and llama.cpp's names, where these are asked for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from weightmap.checkpoints.weights import as_parameters, storage_of
from weightmap.conversion.quantizer import Quantizer
from weightmap.core.formats import FORMATS
from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import name_of, rows_of
from weightmap.errors import EncodeError, Remedy, counted, quoted
from weightmap.llama import PROGRAM
from weightmap.llama.translating import as_llama, known, shape_of, unknown

if TYPE_CHECKING:
    from weightmap.conversion.spec import Spec
    from weightmap.core.model.file import TensorFile


def _translates(file: TensorFile, spec: Spec, names: str, *, whole: bool) -> tuple[bool, str]:
    """Return whether a conversion translates names, and why it does not although it would.

    `whole` says that the source is a directory or an index. Raises `EncodeError` where it is asked for and cannot be.
    """
    strictly, target = names == PROGRAM, spec.target_format
    if target.program != PROGRAM:
        if strictly:
            what = f"{PROGRAM} reads GGUF, and the target is {target.title}"
            raise EncodeError(what, remedy=Remedy("leave {} out", "names", PROGRAM))
        return False, ""
    source = FORMATS.get(file.format)
    if names == "keep" or source is None or source.program == PROGRAM or not (whole or strictly):
        return False, ""
    found = known(file, strictly=strictly, weights=spec.weights)
    return found is not None, "" if found is not None else unknown(file)


def seen_by(spec: Spec, stored: TensorFile, names: str, *, whole: bool) -> tuple[TensorFile, Spec, list[str]]:
    """Return a model as a conversion sees it, the arguments with what was found out, and lines about what is odd.

    `whole` says that the source is a directory or an index. Raises what `viewed` raises, `EncodeError` for names and
    for a mixture that cannot be, and `UnsupportedError` for stored codes that would be computed on.
    """
    if not spec.weights and (spec.dtype is not None or spec.quantize is not None):
        check_computable(stored, spec.takes, "dtype=" if spec.quantize is None else "quantize=")
    translated, why = _translates(stored, spec, names, whole=whole)
    spec = dataclasses.replace(spec, translated=translated)
    file, notes = viewed(stored, spec)
    return file, _with_shape(spec, file, why), [*([why] if why else []), *notes]


def viewed(file: TensorFile, spec: Spec, *, with_keys: bool = True) -> tuple[TensorFile, list[str]]:
    """Return a model as the conversion sees it, and lines about what is odd.

    Raises what `as_parameters` and `as_llama` raise, and `EncodeError` for a parameter that `quantize` asks for and
    that its integers do not give.
    """
    notes: list[str] = []
    plain = None
    if spec.weights:
        stored = file
        file = _parameters(file, spec)
        plain = lambda: as_parameters(stored, spec.decoded)  # noqa: E731 - called where experts differ
    if spec.translated:
        how = spec.quantize
        kind = spec.dtype if how is None else how.scheme
        file, notes = as_llama(file, kind, with_keys=with_keys, plain=plain)
    return file, notes


def _with_shape(spec: Spec, file: TensorFile, why: str) -> Spec:
    """Return the arguments of a conversion with what a mixture depends on. Raises `EncodeError` where it is missing.

    `why` says why the model did not get llama.cpp's names although it would, if so.
    """
    mixture = None if spec.quantize is None else spec.quantize.mixture
    if not (mixture or spec.translated):
        return spec
    shape = shape_of(file.metadata, file)
    if mixture and (shape is None or spec.target_format.program != PROGRAM):
        assert spec.quantize is not None  # noqa: S101 - it has the mixture
        raise EncodeError(
            f"{mixture} is a mixture of {PROGRAM}, by its names of tensors, which this model does not get"
            f"{f' ({why})' if why else ''}; other programs may take {spec.quantize.usual}, and {PROGRAM} would not"
        ).located(path=name_of(file))
    return dataclasses.replace(spec, shape=shape)


def _parameters(file: TensorFile, spec: Spec) -> TensorFile:
    """Return the parameters of a model; refuse one that `quantize` asks for and that its integers do not give."""
    found: TensorFile = as_parameters(file, spec.decoded, spec.repacked)
    if spec.quantize is not None:
        quantizer = Quantizer(spec.quantize)
        refused = tuple(
            f"parameter {quoted(name)} is {how[0]}, which is not exactly {spec.quantize.usual}"
            for name, row in zip(found, rows_of(found), strict=True)
            if (how := storage_of(row)) is not None and spec.takes(name) and quantizer.wants(name, row)
        )
        if refused:
            error = EncodeError(f"{refused[0]} ({counted(len(refused), 'such parameter')}): decode it to a file first")
            error.refused = refused
            raise error.located(path=name_of(file))
    return found
